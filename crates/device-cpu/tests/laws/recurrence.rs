//! Convolution, delta rule and state space.

use crate::harness::{Session, assert_close, numbers, sequence_law};
use paceline_device::{Backend, CausalConv, DeltaRule, HeadMap, StateShape, StateSpace};

const LENGTHS: [usize; 4] = [70, 9, 66, 2];

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn softplus(x: f64) -> f64 {
    x.exp().ln_1p()
}

fn row(name: u64, request: usize, token: usize, columns: usize, scale: f32) -> Vec<f64> {
    wide(&numbers((name, request, token), columns, scale))
}

#[test]
fn causal_conv_keeps_the_law() {
    let channels = 300;
    for (width, with_bias) in [(4, true), (2, false), (9, true), (1, false)] {
        let weight = numbers((20, 0, 0), channels * width, 1.0);
        let bias = numbers((21, 0, 0), channels, 1.0);
        let results = sequence_law(&LENGTHS, &[16], |session| {
            let cpu = session.cpu.clone();
            let shape = StateShape {
                slots: LENGTHS.len(),
                conv_channels: channels,
                conv_width: width,
                heads: 0,
                groups: 0,
                rows: 0,
                columns: 0,
                drafts: 0,
                snapshots: 0,
            };
            let cache = cpu.state_cache(shape).unwrap();
            let weight = cpu.buffer_from(&weight).unwrap();
            let bias = with_bias.then(|| cpu.buffer_from(&bias).unwrap());
            move |session: &Session| {
                let x = session.tensor(1, channels, 2.0);
                let mut out = session.empty(channels);
                cpu.causal_conv(CausalConv {
                    x: &x,
                    weight: &weight,
                    bias: bias.as_ref(),
                    cache: &cache,
                    out: &mut out,
                    step: &session.tables,
                });
                out
            }
        });
        for (request, (result, length)) in results.iter().zip(LENGTHS).enumerate() {
            let mut expected = Vec::new();
            for token in 0..length {
                for channel in 0..channels {
                    let mut sum = if with_bias { f64::from(bias[channel]) } else { 0.0 };
                    for tap in 0..width {
                        if token + tap + 1 >= width {
                            let x = numbers((1, request, token + tap + 1 - width), channels, 2.0);
                            sum += f64::from(weight[channel * width + tap]) * f64::from(x[channel]);
                        }
                    }
                    expected.push(sum * sigmoid(sum));
                }
                if token > 12 {
                    break;
                }
            }
            assert_close("causal_conv", &result[..expected.len()], &expected, 2e-6);
        }
    }
}

#[test]
fn a_slot_starts_from_zero_for_its_next_request() {
    // The same request twice in the same slot: the state of the first must not show in the second.
    let (_, cpu) = crate::harness::devices().remove(1);
    let mut session = Session::new(&cpu, &[5], 16);
    let shape = StateShape {
        slots: 1,
        conv_channels: 8,
        conv_width: 4,
        heads: 1,
        groups: 1,
        rows: 8,
        columns: 8,
        drafts: 0,
        snapshots: 0,
    };
    let cache = cpu.state_cache(shape).unwrap();
    let weight = cpu.buffer_from(&numbers((20, 0, 0), 32, 1.0)).unwrap();
    let schedule = vec![vec![crate::harness::Chunk {
        request: 0,
        tokens: 0..5,
    }]];
    let ones = cpu.buffer_from(&[-0.5_f32]).unwrap();
    let mut run = || {
        crate::harness::run_schedule(&mut session, &schedule, |session| {
            let x = session.tensor(1, 8, 2.0);
            let (mut mixed, mut out) = (session.empty(8), session.empty(8));
            cpu.causal_conv(CausalConv {
                x: &x,
                weight: &weight,
                bias: None,
                cache: &cache,
                out: &mut mixed,
                step: &session.tables,
            });
            cpu.delta_rule(DeltaRule {
                q: &mixed,
                k: &mixed,
                v: &mixed,
                a: &session.tensor(2, 1, 1.0),
                b: &session.tensor(3, 1, 1.0),
                decay: &ones,
                dt_bias: &ones,
                head_map: HeadMap::Grouped,
                cache: &cache,
                out: &mut out,
                step: &session.tables,
            });
            out
        })
    };
    let first = run();
    assert_eq!(first, run());
}

struct Delta {
    key_heads: usize,
    heads: usize,
    dk: usize,
    dv: usize,
    head_map: HeadMap,
}

impl Delta {
    fn naive(&self, request: usize, length: usize, decay: &[f32], dt_bias: &[f32]) -> Vec<f64> {
        let (dk, dv) = (self.dk, self.dv);
        let mut out = vec![0.0; length * self.heads * dv];
        for head in 0..self.heads {
            let key_head = match self.head_map {
                HeadMap::Grouped => head / (self.heads / self.key_heads),
                HeadMap::Tiled => head % self.key_heads,
            };
            let unit = |name, token| {
                let x = row(name, request, token, self.key_heads * dk, 2.0);
                let x = &x[key_head * dk..][..dk];
                let inverse = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                x.iter().map(|x| x * inverse).collect::<Vec<f64>>()
            };
            let mut state = vec![0.0; dk * dv];
            for token in 0..length {
                let (q, k) = (unit(1, token), unit(2, token));
                let v = row(3, request, token, self.heads * dv, 2.0);
                let a = row(4, request, token, self.heads, 2.0)[head];
                let beta = sigmoid(row(5, request, token, self.heads, 2.0)[head]);
                let g = f64::from(decay[head]) * softplus(a + f64::from(dt_bias[head]));
                for s in &mut state {
                    *s *= g.exp();
                }
                for j in 0..dv {
                    let seen: f64 = (0..dk).map(|i| state[i * dv + j] * k[i]).sum();
                    let update = beta * (v[head * dv + j] - seen);
                    let mut read = 0.0;
                    for i in 0..dk {
                        state[i * dv + j] += k[i] * update;
                        read += state[i * dv + j] * q[i] / (dk as f64).sqrt();
                    }
                    out[(token * self.heads + head) * dv + j] = read;
                }
            }
        }
        out
    }
}

#[test]
fn the_delta_rule_keeps_the_law() {
    for head_map in [HeadMap::Grouped, HeadMap::Tiled] {
        let layer = Delta {
            key_heads: 2,
            heads: 4,
            dk: 20,
            dv: 44,
            head_map,
        };
        let decay: Vec<f32> = numbers((30, 0, 0), layer.heads, 1.0)
            .iter()
            .map(|x| -x.exp())
            .collect();
        let dt_bias = numbers((31, 0, 0), layer.heads, 1.0);
        let results = sequence_law(&LENGTHS, &[16], |session| {
            let cpu = session.cpu.clone();
            let shape = StateShape {
                slots: LENGTHS.len(),
                conv_channels: 0,
                conv_width: 1,
                heads: layer.heads,
                groups: layer.key_heads,
                rows: layer.dk,
                columns: layer.dv,
                drafts: 0,
                snapshots: 0,
            };
            let cache = cpu.state_cache(shape).unwrap();
            let parameters = [&decay, &dt_bias].map(|data| cpu.buffer_from(data).unwrap());
            let (keys, heads, dv) = (layer.key_heads * layer.dk, layer.heads, layer.dv);
            move |session: &Session| {
                let mut out = session.empty(heads * dv);
                cpu.delta_rule(DeltaRule {
                    q: &session.tensor(1, keys, 2.0),
                    k: &session.tensor(2, keys, 2.0),
                    v: &session.tensor(3, heads * dv, 2.0),
                    a: &session.tensor(4, heads, 2.0),
                    b: &session.tensor(5, heads, 2.0),
                    decay: &parameters[0],
                    dt_bias: &parameters[1],
                    head_map,
                    cache: &cache,
                    out: &mut out,
                    step: &session.tables,
                });
                out
            }
        });
        for (request, (result, length)) in results.iter().zip(LENGTHS).enumerate() {
            let expected = layer.naive(request, length, &decay, &dt_bias);
            assert_close("delta_rule", result, &expected, 3e-6);
        }
    }
}

struct Space {
    heads: usize,
    groups: usize,
    p: usize,
    n: usize,
    limits: (f32, f32),
}

impl Space {
    fn naive(&self, request: usize, length: usize, parameters: &[Vec<f32>; 3]) -> Vec<f64> {
        let (p, n) = (self.p, self.n);
        let mut out = vec![0.0; length * self.heads * p];
        for head in 0..self.heads {
            let [decay, skip, dt_bias] = [0, 1, 2].map(|i| f64::from(parameters[i][head]));
            let group = head / (self.heads / self.groups);
            let mut state = vec![0.0; p * n];
            for token in 0..length {
                let x = row(1, request, token, self.heads * p, 2.0);
                let b = row(2, request, token, self.groups * n, 1.0);
                let c = row(3, request, token, self.groups * n, 1.0);
                let dt = softplus(row(4, request, token, self.heads, 2.0)[head] + dt_bias)
                    .clamp(f64::from(self.limits.0), f64::from(self.limits.1));
                for i in 0..p {
                    let x = x[head * p + i];
                    let mut y = skip * x;
                    for j in 0..n {
                        let s = &mut state[i * n + j];
                        *s = (dt * decay).exp() * *s + dt * x * b[group * n + j];
                        y += *s * c[group * n + j];
                    }
                    out[(token * self.heads + head) * p + i] = y;
                }
            }
        }
        out
    }
}

#[test]
fn the_state_space_keeps_the_law() {
    let layer = Space {
        heads: 10,
        groups: 2,
        p: 100,
        n: 36,
        limits: (0.2, 1.5),
    };
    let mut parameters = [30, 31, 32].map(|name| numbers((name, 0, 0), layer.heads, 1.0));
    parameters[0].iter_mut().for_each(|x| *x = -x.exp());
    let results = sequence_law(&LENGTHS, &[16], |session| {
        let cpu = session.cpu.clone();
        let shape = StateShape {
            slots: LENGTHS.len(),
            conv_channels: 0,
            conv_width: 1,
            heads: layer.heads,
            groups: layer.groups,
            rows: layer.n,
            columns: layer.p,
            drafts: 0,
            snapshots: 0,
        };
        let cache = cpu.state_cache(shape).unwrap();
        let buffers = [0, 1, 2].map(|i: usize| cpu.buffer_from(&parameters[i]).unwrap());
        let (heads, values, inputs) = (layer.heads, layer.heads * layer.p, layer.groups * layer.n);
        move |session: &Session| {
            let mut out = session.empty(values);
            cpu.state_space(StateSpace {
                x: &session.tensor(1, values, 2.0),
                b: &session.tensor(2, inputs, 1.0),
                c: &session.tensor(3, inputs, 1.0),
                dt: &session.tensor(4, heads, 2.0),
                decay: &buffers[0],
                skip: &buffers[1],
                dt_bias: &buffers[2],
                dt_limits: layer.limits,
                cache: &cache,
                out: &mut out,
                step: &session.tables,
            });
            out
        }
    });
    for (request, (result, length)) in results.iter().zip(LENGTHS).enumerate() {
        let expected = layer.naive(request, length, &parameters);
        assert_close("state_space", result, &expected, 1e-5);
    }
}

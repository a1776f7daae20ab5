//! Gated DeltaNet: linear attention with the gated delta rule.

use super::{Contribution, Linear};
use crate::config::{divides, width};
use crate::loader::Part;
use crate::{Config, Forward, Loader, ModelError};
use paceline_device::{
    Backend, CausalConv, DeltaRule, DeviceError, GateOrder, GatedNorm, HeadMap, StateShape,
};

/// Shape of a DeltaNet layer.
#[derive(Clone, Copy, Debug)]
pub struct DeltaNetConfig {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query and key heads.
    pub key_heads: usize,
    /// Value heads, a multiple of the key heads.
    pub value_heads: usize,
    /// Elements of a query or key head.
    pub key_dim: usize,
    /// Elements of a value head.
    pub value_dim: usize,
    /// Taps of the convolution.
    pub conv_width: usize,
    /// Epsilon of the output norm.
    pub eps: f32,
    /// Projections are stored grouped by key head when no flat ones are in the file.
    pub grouped_projections: bool,
}

impl DeltaNetConfig {
    /// Reads the `linear_*` fields.
    pub fn read(config: &Config<'_>, eps: f32, grouped_projections: bool) -> Result<Self, ModelError> {
        let key_heads = config.count("linear_num_key_heads")?;
        let value_heads = config.count("linear_num_value_heads")?;
        divides("linear_num_value_heads", value_heads, key_heads)?;
        let key_dim = config.count("linear_key_head_dim")?;
        let value_dim = config.count("linear_value_head_dim")?;
        width("linear_key_head_dim", key_heads, key_dim)?;
        width("linear_value_head_dim", value_heads, value_dim)?;
        Ok(Self {
            hidden: config.count("hidden_size")?,
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            conv_width: config.taps("linear_conv_kernel_dim")?,
            eps,
            grouped_projections,
        })
    }

    fn key_width(&self) -> usize {
        self.key_heads * self.key_dim
    }

    fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    fn conv_channels(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// The state this layer keeps per request.
    pub fn state_shape(&self, slots: usize) -> StateShape {
        StateShape {
            slots,
            conv_channels: self.conv_channels(),
            conv_width: self.conv_width,
            heads: self.value_heads,
            groups: self.key_heads,
            rows: self.key_dim,
            columns: self.value_dim,
            drafts: 0,
            snapshots: 0,
        }
    }
}

/// A Gated DeltaNet layer. Projections are one matrix: queries, keys, values, output gate, `b`, `a`. Where the last two are
/// stored wider than the others, they are a matrix of their own.
pub struct DeltaNet<B: Backend> {
    config: DeltaNetConfig,
    input: Linear<B>,
    rates: Option<Linear<B>>,
    conv: B::Buffer<f32>,
    decay: B::Buffer<f32>,
    dt_bias: B::Buffer<f32>,
    head_map: HeadMap,
    norm: B::Buffer<f32>,
    output: Linear<B>,
    cache: usize,
}

impl<B: Backend> DeltaNet<B> {
    /// Loads the layer below `prefix`. `cache` is its index among the recurrent layers.
    pub fn load(
        loader: &Loader<'_, B>,
        prefix: &str,
        config: DeltaNetConfig,
        cache: usize,
    ) -> Result<Self, ModelError> {
        let (value_width, channels) = (config.value_width(), config.conv_channels());
        let outputs = channels + value_width + 2 * config.value_heads;
        let head_map = match loader.gguf() {
            Some(names) => names.value_head_map(),
            None => HeadMap::Grouped,
        };
        let parts = projection_parts(loader, prefix, &config);
        let eight_bits = parts.iter().map(|part| loader.is_eight_bits(part));
        let eight_bits = eight_bits.collect::<Result<Vec<_>, _>>()?;
        let wide = 2 * config.value_heads;
        let (input, rates) = match parts.split_at(parts.len() - 2) {
            (narrow, rates) if eight_bits.ends_with(&[true, false, false]) => (
                Linear::stack(loader, narrow, outputs - wide)?,
                Some(Linear::stack(loader, rates, wide)?),
            ),
            _ => (Linear::stack(loader, &parts, outputs)?, None),
        };
        Ok(Self {
            input,
            rates,
            conv: loader.buffer(
                &format!("{prefix}.conv1d.weight"),
                &[channels, 1, config.conv_width],
            )?,
            decay: loader.decay(&format!("{prefix}.A_log"), config.value_heads)?,
            dt_bias: loader.buffer(&format!("{prefix}.dt_bias"), &[config.value_heads])?,
            head_map,
            norm: loader.buffer(&format!("{prefix}.norm.weight"), &[config.value_dim])?,
            output: Linear::load(loader, &format!("{prefix}.out_proj"), config.hidden, value_width)?,
            config,
            cache,
        })
    }

    /// Columns of its widest tensor.
    pub fn width(&self) -> usize {
        self.input.outputs() + self.rates.as_ref().map_or(0, Linear::outputs)
    }

    /// Heads and widths of the layer.
    pub fn config(&self) -> &DeltaNetConfig {
        &self.config
    }

    /// Mixes the step's tokens into their requests' states.
    pub fn run(&self, cx: &Forward<'_, B>, x: &B::Tensor) -> Result<Contribution<'_, B>, DeviceError> {
        let config = &self.config;
        let (key_width, value_width) = (config.key_width(), config.value_width());
        let (channels, heads) = (config.conv_channels(), config.value_heads);
        let backend = cx.backend;
        let cache = &cx.caches.states[self.cache];

        let mut projected = cx.tokens(self.width())?;
        let gate = backend.columns(&projected, channels..channels + value_width);
        let b = backend.columns(&projected, channels + value_width..channels + value_width + heads);
        let a = backend.columns(&projected, channels + value_width + heads..self.width());

        let mut mixed = cx.tokens(channels)?;
        let conv_input = backend.columns(&projected, 0..channels);
        let [q, k, v] = [0..key_width, key_width..2 * key_width, 2 * key_width..channels]
            .map(|range| backend.columns(&mixed, range));
        let conv: CausalConv<'_, B> = CausalConv {
            x: &conv_input,
            weight: &self.conv,
            bias: None,
            cache,
            out: &mut mixed,
            step: cx.step,
        };
        let mut out = cx.tokens(value_width)?;
        let values = backend.columns(&out, 0..value_width);
        let rule: DeltaRule<'_, B> = DeltaRule {
            q: &q,
            k: &k,
            v: &v,
            a: &a,
            b: &b,
            decay: &self.decay,
            dt_bias: &self.dt_bias,
            head_map: self.head_map,
            cache,
            out: &mut out,
            step: cx.step,
        };
        let mut normed = cx.tokens(value_width)?;
        let norm: GatedNorm<'_, B> = GatedNorm {
            x: &values,
            gate: &gate,
            weight: Some(&self.norm),
            group: config.value_dim,
            order: GateOrder::NormThenGate,
            eps: config.eps,
            out: &mut normed,
        };
        match &self.rates {
            None => backend.linear_mix_delta(self.input.product(x, &mut projected), conv, rule, norm),
            Some(rates) => {
                let narrow = self.input.outputs();
                self.input
                    .run_into(cx, x, &mut backend.columns(&projected, 0..narrow));
                rates.run_into(cx, x, &mut backend.columns(&projected, narrow..self.width()));
                backend.mix_delta(conv, rule, norm);
            }
        }
        Ok(Contribution::Product(normed, &self.output))
    }
}

/// The projections in the order queries, keys, values, gate, `b`, `a`, from whichever tensors the file has.
fn projection_parts<B: Backend>(loader: &Loader<'_, B>, prefix: &str, config: &DeltaNetConfig) -> Vec<Part> {
    let DeltaNetConfig {
        hidden,
        key_heads,
        value_heads,
        key_dim,
        value_dim,
        grouped_projections,
        ..
    } = *config;
    let (channels, value_width) = (config.conv_channels(), config.value_width());
    let per_key = value_heads / key_heads;
    let name = |tensor: &str| format!("{prefix}.{tensor}.weight");
    // Where neither layout is in the file, the family's own is reported missing.
    let is_flat = |flat: &str, grouped: &str| {
        loader.has(&name(flat), !grouped_projections)
            || !(grouped_projections || loader.has(&name(grouped), false))
    };
    let mut parts = Vec::new();

    if is_flat("in_proj_qkv", "in_proj_qkvz") {
        parts.push(Part::whole(name("in_proj_qkv"), channels, hidden));
        parts.push(Part::whole(name("in_proj_z"), value_width, hidden));
    } else {
        // Rows by key head: its query, its key, then values and gates of the value heads that read it.
        let sizes = [key_dim, key_dim, per_key * value_dim, per_key * value_dim];
        let rows = key_heads * sizes.iter().sum::<usize>();
        let ranges = grouped_ranges(key_heads, &sizes);
        parts.extend(
            ranges
                .into_iter()
                .map(|order| Part::picked(name("in_proj_qkvz"), rows, hidden, order)),
        );
    }
    if is_flat("in_proj_b", "in_proj_ba") {
        parts.push(Part::whole(name("in_proj_b"), value_heads, hidden));
        parts.push(Part::whole(name("in_proj_a"), value_heads, hidden));
    } else {
        let ranges = grouped_ranges(key_heads, &[per_key, per_key]);
        let rows = 2 * value_heads;
        parts.extend(
            ranges
                .into_iter()
                .map(|order| Part::picked(name("in_proj_ba"), rows, hidden, order)),
        );
    }
    parts
}

/// Of rows stored as `groups` runs of consecutive `sizes`, the rows of each size's kind in group order.
fn grouped_ranges(groups: usize, sizes: &[usize]) -> Vec<Vec<u32>> {
    let total: usize = sizes.iter().sum();
    let mut offset = 0;
    let mut kinds = Vec::new();
    for size in sizes {
        let rows = (0..groups).flat_map(|group| (0..*size).map(move |i| group * total + offset + i));
        kinds.push(rows.map(|row| row as u32).collect());
        offset += size;
    }
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grouped_rows_come_out_kind_by_kind() {
        let kinds = grouped_ranges(2, &[1, 2]);
        assert_eq!(kinds, vec![vec![0, 3], vec![1, 2, 4, 5]]);
    }
}

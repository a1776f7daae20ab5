//! All that mixes tokens in a recurrent layer, as the one operation that models enqueue.

use crate::compare::Output;
use crate::recurrences::{Dims, Recurrence, decay};
use crate::rig::Rig;
use crate::sequence::{Session, Texts, columns_of};
use paceline_device::{
    Backend, CausalConv, DeltaRule, DeviceError, Epilogue, GateOrder, GatedNorm, HeadMap, Product,
    StateSpace, StepTables,
};
use paceline_testkit::Matrix;
use paceline_types::DType;

/// Inputs of the product in front.
const HIDDEN: usize = 256;

/// What a layer reads: numbers of tokens, or the outputs of a product over those.
struct Inputs<'a, B: Backend> {
    session: Session<'a, B>,
    projection: Option<B::Weight>,
    rows: B::Tensor,
}

impl<'a, B: Backend> Inputs<'a, B> {
    fn new(
        rig: &'a Rig<'a, B>,
        texts: &Texts,
        (columns, projected): (usize, bool),
    ) -> Result<Self, DeviceError> {
        if !projected {
            let session = Session::new(rig, texts, (columns, 2.0))?;
            let rows = session.x.clone();
            return Ok(Self {
                session,
                projection: None,
                rows,
            });
        }
        let session = Session::coarse(rig, texts, (HIDDEN, 2.0))?;
        let matrix = Matrix::new(DType::BF16, columns, HIDDEN);
        Ok(Self {
            projection: Some(rig.weight("projection", matrix)?),
            rows: rig.device.tensor(&session.tables.tokens, columns)?,
            session,
        })
    }
}

impl Recurrence {
    pub(super) fn mix_delta<B: Backend>(
        &self,
        rig: &Rig<'_, B>,
        dims: Dims,
        projected: bool,
    ) -> Result<Vec<Output>, DeviceError> {
        let (device, keys, values, heads) = (rig.device, dims.keys(), dims.values(), dims.heads);
        let channels = dims.channels();
        let widths = [channels, values, heads, heads];
        let inputs = Inputs::new(rig, &self.texts, (widths.iter().sum(), projected))?;
        let (session, rows) = (&inputs.session, &inputs.rows);
        let tables = &session.tables;
        let [x, gate, b, a] = columns_of(device, rows, widths);
        let cache = device.state_cache(self.layer.shape(&self.texts))?;
        let (decay, dt_bias) = (decay(rig, heads)?, rig.buffer("dt bias", heads, 1.0)?);
        let taps = rig.buffer("taps", 4 * channels, 1.0)?;
        let weight = rig.buffer("norm", dims.columns, 1.5)?;
        let [mixed, ruled, out] =
            [channels, values, values].map(|width| device.tensor(&tables.tokens, width));
        let (mixed, ruled, out) = (mixed?, ruled?, out?);
        let [q, k, v] = columns_of(device, &mixed, [keys, keys, values]);
        let enqueue = |device: &B, tables: &StepTables<B>| {
            session.fill(device);
            let conv = CausalConv {
                x: &x,
                weight: &taps,
                bias: None,
                cache: &cache,
                out: &mut mixed.clone(),
                step: tables,
            };
            let rule = DeltaRule {
                q: &q,
                k: &k,
                v: &v,
                a: &a,
                b: &b,
                decay: &decay,
                dt_bias: &dt_bias,
                head_map: HeadMap::Grouped,
                cache: &cache,
                out: &mut ruled.clone(),
                step: tables,
            };
            let norm = GatedNorm {
                x: &ruled,
                gate: &gate,
                weight: Some(&weight),
                group: dims.columns,
                order: GateOrder::NormThenGate,
                eps: 1e-6,
                out: &mut out.clone(),
            };
            let Some(w) = &inputs.projection else {
                return device.mix_delta(conv, rule, norm);
            };
            let product = Product {
                x: &session.x,
                w,
                epilogue: Epilogue::NONE,
                out: &mut rows.clone(),
            };
            device.linear_mix_delta(product, conv, rule, norm);
        };
        let windows = tables.clone().with_prompts(false);
        let programs =
            [tables, &windows].map(|tables| rig.program(move |device: &B| enqueue(device, tables)));
        session.run_apart(programs.each_ref(), &out, self.limit)
    }

    pub(super) fn mix_space<B: Backend>(
        &self,
        rig: &Rig<'_, B>,
        dims: Dims,
    ) -> Result<Vec<Output>, DeviceError> {
        let (device, keys, values, heads) = (rig.device, dims.keys(), dims.values(), dims.heads);
        let channels = dims.channels();
        let session = Session::new(rig, &self.texts, (channels + values + heads, 2.0))?;
        let [gate, x, dt] = session.columns([values, channels, heads]);
        let tables = &session.tables;
        let cache = device.state_cache(self.layer.shape(&self.texts))?;
        let (decay, skip) = (decay(rig, heads)?, rig.buffer("skip", heads, 1.0)?);
        let dt_bias = rig.buffer("dt bias", heads, 1.0)?;
        let (taps, bias) = (
            rig.buffer("taps", 4 * channels, 1.0)?,
            rig.buffer("bias", channels, 1.0)?,
        );
        let weight = rig.buffer("norm", values, 1.5)?;
        let [mixed, spaced, out] =
            [channels, values, values].map(|width| device.tensor(&tables.tokens, width));
        let (mixed, spaced, out) = (mixed?, spaced?, out?);
        let ranges = [0..values, values..values + keys, values + keys..channels];
        let [value, b, c] = ranges.map(|range| device.columns(&mixed, range));
        let enqueue = |device: &B, tables: &StepTables<B>| {
            session.fill(device);
            let conv = CausalConv {
                x: &x,
                weight: &taps,
                bias: Some(&bias),
                cache: &cache,
                out: &mut mixed.clone(),
                step: tables,
            };
            let recurrence = StateSpace {
                x: &value,
                b: &b,
                c: &c,
                dt: &dt,
                decay: &decay,
                skip: &skip,
                dt_bias: &dt_bias,
                dt_limits: (0.0, f32::INFINITY),
                cache: &cache,
                out: &mut spaced.clone(),
                step: tables,
            };
            let norm = GatedNorm {
                x: &spaced,
                gate: &gate,
                weight: Some(&weight),
                group: values / dims.groups,
                order: GateOrder::GateThenNorm,
                eps: 1e-5,
                out: &mut out.clone(),
            };
            device.mix_state_space(conv, recurrence, norm);
        };
        let windows = tables.clone().with_prompts(false);
        let programs =
            [tables, &windows].map(|tables| rig.program(move |device: &B| enqueue(device, tables)));
        session.run_apart(programs.each_ref(), &out, self.limit)
    }
}

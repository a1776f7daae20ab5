//! Causal self-attention with grouped heads.

use super::{Contribution, Linear, NormKind};
use crate::gguf::GgufNames;
use crate::loader::Part;
use crate::{Forward, Loader, ModelError};
use paceline_device::{Attention as AttentionArgs, Backend, DeviceError, HeadNorms, KeyValueStore, KvShape};

/// Shape and options of an attention layer.
#[derive(Clone, Copy, Debug)]
pub struct AttentionConfig {
    /// Columns of what it reads.
    pub inputs: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// `q_proj` also gives a sigmoid gate for the output: per head, query rows then gate rows.
    pub gated: bool,
    /// Queries, keys and values have biases.
    pub qkv_bias: bool,
    /// The output has a bias.
    pub output_bias: bool,
    /// Norms of query and key heads, with their epsilon.
    pub head_norms: Option<(NormKind, f32)>,
    /// Positions are rotated in.
    pub rotary: bool,
    /// Multiplies the scores.
    pub scale: f32,
}

impl AttentionConfig {
    /// The usual scale.
    pub fn default_scale(head_dim: usize) -> f32 {
        1.0 / (head_dim as f32).sqrt()
    }

    fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}

/// Norms of query and key heads.
struct StoredNorms<B: Backend> {
    q: B::Buffer<f32>,
    k: B::Buffer<f32>,
    eps: f32,
}

impl<B: Backend> StoredNorms<B> {
    fn args(&self) -> HeadNorms<'_, B> {
        HeadNorms {
            q: &self.q,
            k: &self.k,
            eps: self.eps,
        }
    }
}

/// An attention layer. Projections are one matrix: queries, gate, keys, values.
pub struct Attention<B: Backend> {
    config: AttentionConfig,
    qkv: Linear<B>,
    norms: Option<StoredNorms<B>>,
    output: Linear<B>,
    cache: usize,
}

impl<B: Backend> Attention<B> {
    /// Loads `{prefix}.q_proj` and so on. `cache` is the layer's index among the attention layers.
    pub fn load(
        loader: &Loader<'_, B>,
        prefix: &str,
        config: AttentionConfig,
        cache: usize,
    ) -> Result<Self, ModelError> {
        let AttentionConfig {
            inputs,
            hidden,
            heads,
            kv_heads,
            head_dim,
            ..
        } = config;
        let (query_width, kv_width) = (config.query_width(), config.kv_width());
        let mut parts = query_parts(loader, &format!("{prefix}.q_proj.weight"), &config);
        parts.push(rotated_part(
            loader,
            &format!("{prefix}.k_proj.weight"),
            (kv_heads, head_dim),
            inputs,
        ));
        parts.push(Part::whole(format!("{prefix}.v_proj.weight"), kv_width, inputs));
        let outputs = query_width * if config.gated { 2 } else { 1 } + 2 * kv_width;
        let mut qkv = Linear::stack(loader, &parts, outputs)?;
        if config.qkv_bias {
            let mut bias = loader.vector(&format!("{prefix}.q_proj.bias"), &[heads * head_dim])?;
            for (name, len) in [("k_proj", kv_width), ("v_proj", kv_width)] {
                bias.extend(loader.vector(&format!("{prefix}.{name}.bias"), &[len])?);
            }
            qkv.set_bias(loader, &bias)?;
        }
        let norms = match config.head_norms {
            Some((kind, eps)) => Some(StoredNorms {
                q: kind.load(loader, &format!("{prefix}.q_norm.weight"), head_dim)?,
                k: kind.load(loader, &format!("{prefix}.k_norm.weight"), head_dim)?,
                eps,
            }),
            None => None,
        };
        let output_shape = (hidden, query_width);
        let output = Linear::load_with_bias(
            loader,
            &format!("{prefix}.o_proj"),
            output_shape,
            config.output_bias,
        )?;
        Ok(Self {
            config,
            qkv,
            norms,
            output,
            cache,
        })
    }

    /// Multiplies queries, keys, values and the output by constants (maximal-update scaling).
    pub fn set_scales(&mut self, loader: &Loader<'_, B>, scales: &AttentionScales) -> Result<(), ModelError> {
        assert!(!self.config.gated, "no gated model has these");
        let (query_width, kv_width) = (self.config.query_width(), self.config.kv_width());
        let mut columns = vec![scales.input; query_width];
        columns.extend(vec![scales.input * scales.key; kv_width]);
        columns.extend(vec![scales.input; kv_width]);
        self.qkv.set_scale(loader, &columns)?;
        self.output.set_uniform_scale(loader, scales.output)
    }

    /// Columns of its widest tensor.
    pub fn width(&self) -> usize {
        self.qkv.outputs()
    }

    /// Shape and options.
    pub fn config(&self) -> &AttentionConfig {
        &self.config
    }

    /// Shape of its blocks, for this many blocks.
    pub fn kv_shape(&self, blocks: usize, block_size: usize) -> KvShape {
        KvShape {
            blocks,
            block_size,
            heads: self.config.kv_heads,
            head_dim: self.config.head_dim,
        }
    }

    /// Attention of the step's tokens, whose keys and values are added to the cache.
    pub fn run(&self, cx: &Forward<'_, B>, x: &B::Tensor) -> Result<Contribution<'_, B>, DeviceError> {
        let (query_width, kv_width) = (self.config.query_width(), self.config.kv_width());
        let qkv = self.qkv.run(cx, x)?;
        let mut q = cx.backend.columns(&qkv, 0..query_width);
        let gate = self
            .config
            .gated
            .then(|| cx.backend.columns(&qkv, query_width..2 * query_width));
        let keys_from = query_width * if self.config.gated { 2 } else { 1 };
        let k = cx.backend.columns(&qkv, keys_from..keys_from + kv_width);
        let v = cx
            .backend
            .columns(&qkv, keys_from + kv_width..keys_from + 2 * kv_width);
        let cache = &cx.caches.kv[self.cache];
        cx.backend.store_kv(KeyValueStore {
            q: &mut q,
            k: &k,
            v: &v,
            norms: self.norms.as_ref().map(StoredNorms::args),
            angles: if self.config.rotary {
                cx.angles.as_deref()
            } else {
                None
            },
            cache,
            step: cx.step,
        });
        let mut mixed = cx.tokens(query_width)?;
        let scale = self.config.scale;
        let (gate, out, step) = (gate.as_ref(), &mut *mixed, cx.step);
        cx.backend.attention(AttentionArgs {
            q: &q,
            gate,
            cache,
            scale,
            out,
            step,
        });
        Ok(Contribution::Product(mixed, &self.output))
    }
}

/// Constants of [`Attention::set_scales`].
pub struct AttentionScales {
    /// On the layer's input.
    pub input: f32,
    /// On the keys.
    pub key: f32,
    /// On the layer's output.
    pub output: f32,
}

/// Queries, then (of gated layers) the gates, which are stored head by head behind their queries.
fn query_parts<B: Backend>(loader: &Loader<'_, B>, name: &str, config: &AttentionConfig) -> Vec<Part> {
    let AttentionConfig {
        inputs,
        heads,
        head_dim,
        ..
    } = *config;
    if !config.gated {
        return vec![rotated_part(loader, name, (heads, head_dim), inputs)];
    }
    let stored = 2 * heads * head_dim;
    let half = |offset: usize| {
        let rows = |head: usize| (0..head_dim).map(move |i| ((2 * head + offset) * head_dim + i) as u32);
        Part::picked(name, stored, inputs, (0..heads).flat_map(rows).collect())
    };
    vec![half(0), half(1)]
}

/// A projection whose heads will be rotated. GGUF files of Llama models store its rows so that rotated pairs
/// are neighbours; everywhere else the two halves of a head form the pairs.
fn rotated_part<B: Backend>(
    loader: &Loader<'_, B>,
    name: &str,
    (heads, head_dim): (usize, usize),
    inputs: usize,
) -> Part {
    let rows = heads * head_dim;
    if !loader.gguf().is_some_and(GgufNames::pairs_are_neighbours) {
        return Part::whole(name, rows, inputs);
    }
    let half = head_dim / 2;
    let stored_row = |row: usize| {
        let (head, within) = (row / head_dim, row % head_dim);
        (head * head_dim + 2 * (within % half) + within / half) as u32
    };
    Part::picked(name, rows, inputs, (0..rows).map(stored_row).collect())
}

//! EAGLE-3: a draft head with files of its own, made for one model.
//!
//! It joins the model's residual stream at some layers into a state, and that with the embedding of the token that
//! followed. From its second draft on it goes on from its own state.

mod options;

use crate::arch::Builder;
use crate::decoder::kv_shapes;
use crate::layers::{Attention, AttentionConfig, Block, BlockOp, Linear, Mlp, Norm, NormKind, Rope, Stack};
use crate::{Config, Decoder, DraftHead, DraftScope, DraftStates, Forward, LoadStats, Loader, ModelError};
use options::Options;
use paceline_device::{Backend, DeviceError, KvShape, Sampling, Scratch};
use paceline_types::DType;
use paceline_weights::Checkpoint;
use serde_json::Value;

/// An EAGLE-3 draft head.
pub struct Eagle3<B: Backend> {
    taps: Vec<usize>,
    join: Join<B>,
    embedding: B::Weight,
    embedding_norm: Norm<B>,
    state_norm: Norm<B>,
    /// Of the first layer, which reads the embedding beside the state.
    attention: Attention<B>,
    rope: Rope<B>,
    /// Everything behind it.
    blocks: Vec<Block<B>>,
    norm: Norm<B>,
    output: Output<B>,
    /// The first rows of it.
    part: Option<Output<B>>,
    norm_before_residual: bool,
    norm_output: bool,
    width: usize,
    /// What was loaded.
    pub stats: LoadStats,
}

/// An output matrix, and the model's token for each of its rows where that is not the row's number: in memory, and on the
/// device.
struct Output<B: Backend> {
    matrix: Linear<B>,
    tokens: Option<(Vec<i32>, B::Buffer<i32>)>,
}

impl<B: Backend> Output<B> {
    fn new(backend: &B, matrix: Linear<B>, tokens: Option<Vec<i32>>) -> Result<Self, DeviceError> {
        let tokens = tokens.map(|tokens| Ok::<_, DeviceError>((backend.buffer_from(&tokens)?, tokens)));
        let tokens = tokens.transpose()?.map(|(buffer, tokens)| (tokens, buffer));
        Ok(Self { matrix, tokens })
    }

    fn first(&self, backend: &B, rows: usize) -> Result<Self, DeviceError> {
        let tokens = self.tokens.as_ref().map(|(tokens, _)| tokens[..rows].to_vec());
        Self::new(backend, self.matrix.first_outputs(backend, rows)?, tokens)
    }

    /// Logits of the step's sampled positions: a column per row of the matrix, or per token of the model.
    fn logits(
        &self,
        model: &Decoder<B>,
        cx: &Forward<'_, B>,
        (normed, width): (&B::Tensor, usize),
    ) -> Result<Scratch<B>, DeviceError> {
        let mut rows = cx.samples(width)?;
        cx.backend.gather_sampled(normed, cx.step, &mut rows);
        let mut logits = cx.samples(self.matrix.outputs())?;
        self.matrix.run_into(cx, &rows, &mut logits);
        let Some((_, tokens)) = &self.tokens else {
            return Ok(logits);
        };
        let mut spread = cx.samples(model.dims.vocabulary)?;
        cx.backend.spread(&logits, tokens, &mut spread);
        Ok(spread)
    }
}

/// States of the model's layers to one of the head's.
struct Join<B: Backend> {
    norms: JoinNorms<B>,
    /// States.
    count: usize,
    /// Columns of each.
    hidden: usize,
    matrix: Linear<B>,
}

enum JoinNorms<B: Backend> {
    None,
    /// Over all states at once.
    Whole(Norm<B>),
    /// One per state.
    Each(Vec<Norm<B>>),
}

impl<B: Backend> Eagle3<B> {
    /// Whether a `config.json` is that of an EAGLE-3 head.
    pub fn recognises(config: &Value) -> bool {
        options::recognises(config)
    }

    /// Loads a head for a model. `store_as` converts its matrices; `progress` is told the bytes of each tensor as it
    /// is loaded. Embedding and output matrix are the model's where the files have none.
    pub fn load(
        backend: &B,
        checkpoint: &Checkpoint,
        target: &Decoder<B>,
        store_as: Option<DType>,
        progress: &dyn Fn(u64),
    ) -> Result<Self, ModelError> {
        let loader = Loader::stored(backend, checkpoint, None, store_as.into(), progress);
        let head = checkpoint
            .config()
            .filter(|config| Self::recognises(config))
            .ok_or_else(|| ModelError::config("architectures", "this is not an EAGLE-3 draft head"))
            .and_then(|config| Self::build(&loader, &options::flat(config), target));
        head.map_err(|cause| ModelError::DraftHead {
            file: checkpoint.source().to_owned(),
            cause: Box::new(cause),
        })
    }

    fn build(loader: &Loader<'_, B>, config: &Value, target: &Decoder<B>) -> Result<Self, ModelError> {
        let config = Config::new(config);
        if loader.has("mask_hidden", false) {
            let why = "heads that draft several tokens in one pass are not supported";
            return Err(ModelError::config("mask_hidden", why));
        }
        let options = Options::read(&config, target)?;
        let mut builder = Builder::new(loader, &config, NormKind::Plain, "rms_norm_eps")?;
        builder.expect_silu()?;
        let (width, eps) = (builder.hidden, builder.eps);
        let first = if loader.has("midlayer.hidden_norm.weight", false) {
            "midlayer"
        } else {
            "layers.0"
        };
        let mut attention = builder.attention_config()?;
        if loader.has(&format!("{first}.self_attn.q_norm.weight"), false) {
            attention.head_norms = Some((NormKind::Plain, eps));
        }
        let rope = Rope::new(loader, &builder.rope(attention.head_dim)?)?;
        let wide = AttentionConfig {
            inputs: 2 * width,
            ..attention
        };
        let entry = builder.attention(&format!("{first}.self_attn"), wide)?;
        push_mlp(&mut builder, first)?;
        for layer in 1..options.layers {
            let prefix = format!("layers.{layer}");
            let mixer = builder.attention(&format!("{prefix}.self_attn"), attention)?;
            builder.push(&format!("{prefix}.input_layernorm"), BlockOp::Attention(mixer))?;
            push_mlp(&mut builder, &prefix)?;
        }
        let norm = |name: &str| Norm::load(loader, name, width, (NormKind::Plain, eps));
        let shared = Shared { target, width };
        Ok(Self {
            join: Join::load(
                loader,
                &config,
                (width, eps),
                (options.taps.len(), target.dims.hidden),
            )?,
            taps: options.taps,
            embedding: shared.embedding(loader)?,
            embedding_norm: norm(&format!("{first}.input_layernorm"))?,
            state_norm: norm(&format!("{first}.hidden_norm"))?,
            attention: entry,
            rope,
            blocks: builder.take_blocks(),
            norm: norm("norm")?,
            output: Output::new(
                loader.backend(),
                shared.head(loader, options.vocabulary)?,
                tokens(loader, options.vocabulary, target.dims.vocabulary)?,
            )?,
            part: None,
            norm_before_residual: options.norm_before_residual,
            norm_output: options.norm_output,
            width,
            stats: loader.stats(),
        })
    }

    /// A pass from states of the head's own width.
    fn run(&self, cx: &mut Forward<'_, B>, states: &B::Tensor) -> Result<DraftStates<B>, DeviceError> {
        let (backend, width) = (cx.backend, self.width);
        let mut embedded = cx.tokens(width)?;
        backend.embed(cx.step, &self.embedding, 1.0, &mut embedded);
        let joined = cx.tokens(2 * width)?;
        self.embedding_norm
            .run(cx, &embedded, &mut backend.columns(&joined, 0..width));
        let mut normed_state = backend.columns(&joined, width..2 * width);
        self.state_norm.run(cx, states, &mut normed_state);
        let mut residual = cx.tokens(width)?;
        let start = if self.norm_before_residual {
            &normed_state
        } else {
            states
        };
        backend.copy(start, &mut residual);
        cx.rotate_by(Some(&self.rope))?;
        let mixed = self.attention.run(cx, &joined)?;
        let stack = Stack {
            width,
            blocks: &self.blocks,
            scale: 1.0,
            norm: &self.norm,
        };
        let normed = stack.run(cx, &mut residual, Some(mixed), |_, _, _| ())?;
        let carried = (!self.norm_output).then_some(residual);
        Ok(DraftStates { normed, carried })
    }
}

impl<B: Backend> DraftHead<B> for Eagle3<B> {
    fn taps(&self) -> &[usize] {
        &self.taps
    }

    fn width(&self) -> usize {
        self.width
    }

    fn widest_row(&self) -> usize {
        let blocks = self.blocks.iter().map(|block| block.op.width());
        let joins = [self.join.count * self.join.hidden, self.attention.width()];
        blocks.chain(joins).max().unwrap_or(0).max(2 * self.width)
    }

    fn first(
        &self,
        _model: &Decoder<B>,
        cx: &mut Forward<'_, B>,
        states: &B::Tensor,
    ) -> Result<DraftStates<B>, DeviceError> {
        let joined = self.join.run(cx, states)?;
        self.run(cx, &joined)
    }

    fn again(
        &self,
        _model: &Decoder<B>,
        cx: &mut Forward<'_, B>,
        states: &B::Tensor,
    ) -> Result<DraftStates<B>, DeviceError> {
        self.run(cx, states)
    }

    fn logits(
        &self,
        model: &Decoder<B>,
        cx: &Forward<'_, B>,
        normed: &B::Tensor,
    ) -> Result<Scratch<B>, DeviceError> {
        self.output.logits(model, cx, (normed, self.width))
    }

    fn rows(&self, _model: &Decoder<B>) -> usize {
        self.output.matrix.outputs()
    }

    fn set_part(&mut self, backend: &B, _model: &Decoder<B>, rows: usize) -> Result<(), DeviceError> {
        self.part = Some(self.output.first(backend, rows)?);
        Ok(())
    }

    fn sample(
        &self,
        model: &Decoder<B>,
        cx: &Forward<'_, B>,
        scope: DraftScope,
        normed: &B::Tensor,
        sampling: Sampling<'_, B>,
    ) -> Result<(), DeviceError> {
        let output = scope.choose(&self.output, self.part.as_ref());
        let logits = output.logits(model, cx, (normed, self.width))?;
        cx.backend.sample(&logits, sampling);
        Ok(())
    }

    fn kv_shapes(&self, blocks: usize, block_size: usize) -> Vec<KvShape> {
        let mut shapes = vec![self.attention.kv_shape(blocks, block_size)];
        shapes.extend(kv_shapes(&self.blocks, blocks, block_size));
        shapes
    }
}

impl<B: Backend> Join<B> {
    /// `fc` with what norms the `count` states of `hidden` columns before it.
    fn load(
        loader: &Loader<'_, B>,
        config: &Config<'_>,
        (width, eps): (usize, f32),
        (count, hidden): (usize, usize),
    ) -> Result<Self, ModelError> {
        let norm = |name: &str, len: usize| Norm::load(loader, name, len, (NormKind::Plain, eps));
        let whole = config.flag_or("norm_before_fc", loader.has("input_norm.weight", false))?;
        let each = config.flag_or("fc_norm", loader.has("fc_norm.0.weight", false))?;
        let norms = match (whole, each) {
            (false, false) => JoinNorms::None,
            (true, false) => JoinNorms::Whole(norm("input_norm", count * hidden)?),
            (false, true) => {
                let norms = (0..count).map(|index| norm(&format!("fc_norm.{index}"), hidden));
                JoinNorms::Each(norms.collect::<Result<_, _>>()?)
            }
            (true, true) => {
                let why = "not supported together with norm_before_fc";
                return Err(ModelError::config("fc_norm", why));
            }
        };
        Ok(Self {
            norms,
            count,
            hidden,
            matrix: Linear::load(loader, "fc", width, count * hidden)?,
        })
    }

    fn run(&self, cx: &Forward<'_, B>, states: &B::Tensor) -> Result<Scratch<B>, DeviceError> {
        let columns = self.count * self.hidden;
        match &self.norms {
            JoinNorms::None => self.matrix.run(cx, states),
            JoinNorms::Whole(norm) => {
                let mut normed = cx.tokens(columns)?;
                norm.run(cx, states, &mut normed);
                self.matrix.run(cx, &normed)
            }
            JoinNorms::Each(norms) => {
                let normed = cx.tokens(columns)?;
                for (index, norm) in norms.iter().enumerate() {
                    let part = index * self.hidden..(index + 1) * self.hidden;
                    let state = cx.backend.columns(states, part.clone());
                    norm.run(cx, &state, &mut cx.backend.columns(&normed, part));
                }
                self.matrix.run(cx, &normed)
            }
        }
    }
}

/// What the head takes from the model where its files have none.
struct Shared<'a, B: Backend> {
    target: &'a Decoder<B>,
    width: usize,
}

impl<B: Backend> Shared<'_, B> {
    fn embedding(&self, loader: &Loader<'_, B>) -> Result<B::Weight, ModelError> {
        let (name, vocabulary) = ("embed_tokens.weight", self.target.dims.vocabulary);
        if loader.has(name, false) || self.width != self.target.dims.hidden {
            return loader.embedding(name, vocabulary, self.width);
        }
        Ok(self.target.embedding.clone())
    }

    fn head(&self, loader: &Loader<'_, B>, vocabulary: usize) -> Result<Linear<B>, ModelError> {
        let dims = &self.target.dims;
        let fits = self.width == dims.hidden && vocabulary == dims.vocabulary;
        if loader.has("lm_head.weight", false) || !fits {
            return Linear::load_head(loader, "lm_head", vocabulary, self.width);
        }
        Ok(Linear::shared(self.target.head.weight().clone(), vocabulary))
    }
}

fn push_mlp<B: Backend>(builder: &mut Builder<'_, B>, prefix: &str) -> Result<(), ModelError> {
    let (loader, hidden) = (builder.loader, builder.hidden);
    let shape = (hidden, builder.config.count("intermediate_size")?);
    let name = format!("{prefix}.mlp");
    let mut mlp = Mlp::gated(loader, &name, shape)?;
    if builder.config.flag_or("mlp_bias", false)? {
        mlp.load_gated_bias(loader, &name, hidden)?;
    }
    builder.push(&format!("{prefix}.post_attention_layernorm"), BlockOp::Mlp(mlp))
}

/// The model's token for each of the head's, stored as what to add; `None` where they are the same.
fn tokens<B: Backend>(
    loader: &Loader<'_, B>,
    drafted: usize,
    known: usize,
) -> Result<Option<Vec<i32>>, ModelError> {
    let name = "d2t";
    if drafted == known && !loader.has(name, false) {
        return Ok(None);
    }
    let offsets = loader.integers(name, drafted)?;
    let mut taken = vec![false; known];
    let mut tokens = Vec::with_capacity(drafted);
    for (index, offset) in offsets.into_iter().enumerate() {
        let token = offset.checked_add(index as i64);
        let free = token
            .and_then(|token| usize::try_from(token).ok())
            .and_then(|token| taken.get_mut(token).map(|taken| (token, taken)));
        match free {
            Some((token, taken)) if !*taken => {
                *taken = true;
                tokens.push(token as i32);
            }
            _ => {
                let why = format!("{offset} does not lead to a token of its own among {known}");
                return Err(ModelError::Element {
                    name: name.to_owned(),
                    index,
                    why,
                });
            }
        }
    }
    let same = drafted == known && tokens.iter().enumerate().all(|(i, token)| i == *token as usize);
    Ok((!same).then_some(tokens))
}

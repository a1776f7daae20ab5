//! Collects the blocks of a model and finishes it with embedding, norm and output matrix.

use crate::layers::{
    Attention, AttentionConfig, Block, BlockOp, DeltaNet, DeltaNetConfig, Linear, Mamba2, Mamba2Config, Norm,
    NormKind, Rope, RopeConfig,
};
use crate::loader::Part;
use crate::{Config, Decoder, Loader, ModelDims, ModelError};
use paceline_device::Backend;
use paceline_types::TokenId;

/// Builds a [`Decoder`] block by block.
pub(crate) struct Builder<'a, B: Backend> {
    pub(crate) loader: &'a Loader<'a, B>,
    pub(crate) config: &'a Config<'a>,
    pub(crate) hidden: usize,
    pub(crate) eps: f32,
    norm_kind: NormKind,
    blocks: Vec<Block<B>>,
    kv_layers: usize,
    state_layers: usize,
}

/// Names and constants of the parts around the blocks.
pub(crate) struct Frame<'a> {
    pub(crate) architecture: &'static str,
    pub(crate) embedding: &'a str,
    pub(crate) norm: &'a str,
    pub(crate) layers: usize,
    pub(crate) rope: Option<RopeConfig>,
    pub(crate) embedding_scale: f32,
    pub(crate) residual_scale: f32,
    pub(crate) logit_scale: f32,
}

impl<'a, B: Backend> Builder<'a, B> {
    /// Starts a model whose norms are of one kind; `eps_field` names their epsilon.
    pub(crate) fn new(
        loader: &'a Loader<'a, B>,
        config: &'a Config<'a>,
        norm_kind: NormKind,
        eps_field: &str,
    ) -> Result<Self, ModelError> {
        let hidden = config.count("hidden_size")?;
        let eps = config.number_or(eps_field, 1e-6)?;
        if eps < 0.0 {
            return Err(ModelError::config(eps_field, format!("{eps} is negative")));
        }
        Ok(Self {
            loader,
            config,
            hidden,
            eps,
            norm_kind,
            blocks: Vec::new(),
            kv_layers: 0,
            state_layers: 0,
        })
    }

    /// Adds a block behind the norm of this name.
    pub(crate) fn push(&mut self, norm: &str, op: BlockOp<B>) -> Result<(), ModelError> {
        let norm = Norm::load(self.loader, norm, self.hidden, (self.norm_kind, self.eps))?;
        self.blocks.push(Block { norm, op });
        Ok(())
    }

    pub(crate) fn attention(
        &mut self,
        prefix: &str,
        config: AttentionConfig,
    ) -> Result<Attention<B>, ModelError> {
        self.kv_layers += 1;
        Attention::load(self.loader, prefix, config, self.kv_layers - 1)
    }

    pub(crate) fn delta_net(
        &mut self,
        prefix: &str,
        config: DeltaNetConfig,
    ) -> Result<DeltaNet<B>, ModelError> {
        self.state_layers += 1;
        DeltaNet::load(self.loader, prefix, config, self.state_layers - 1)
    }

    pub(crate) fn mamba2(&mut self, prefix: &str, config: Mamba2Config) -> Result<Mamba2<B>, ModelError> {
        self.state_layers += 1;
        Mamba2::load(self.loader, prefix, config, self.state_layers - 1)
    }

    /// Takes the blocks pushed so far, to be used elsewhere than in the main stack.
    pub(crate) fn take_blocks(&mut self) -> Vec<Block<B>> {
        std::mem::take(&mut self.blocks)
    }

    /// Adds what stands before and after the blocks.
    pub(crate) fn finish(self, frame: Frame<'_>, blocks: Vec<Block<B>>) -> Result<Decoder<B>, ModelError> {
        let Self {
            loader,
            config,
            hidden,
            eps,
            norm_kind,
            ..
        } = self;
        let vocabulary = config.vocabulary()?;
        let embedding = loader.embedding(&format!("{}.weight", frame.embedding), vocabulary, hidden)?;
        let tied = self.tied()?;
        let mut head = if tied {
            Linear::shared(embedding.clone(), vocabulary)
        } else {
            Linear::load_head(loader, "lm_head", vocabulary, hidden)?
        };
        head.set_uniform_scale(loader, frame.logit_scale)?;
        let dims = ModelDims {
            architecture: frame.architecture,
            hidden,
            vocabulary,
            layers: frame.layers,
            max_positions: config.positions_or(2048)?,
            eos: eos_tokens(config)?,
            tied,
        };
        Ok(Decoder {
            dims,
            embedding,
            embedding_scale: frame.embedding_scale,
            rope: frame.rope.map(|rope| Rope::new(loader, &rope)).transpose()?,
            blocks,
            residual_scale: frame.residual_scale,
            norm: Norm::load(loader, frame.norm, hidden, (norm_kind, eps))?,
            head,
            mtp: None,
            stats: loader.stats(),
        })
    }
}

impl<B: Backend> Builder<'_, B> {
    /// Whether the output matrix is the embedding.
    fn tied(&self) -> Result<bool, ModelError> {
        self.config.tied(!self.loader.has("lm_head.weight", true))
    }

    /// The output matrix once more, to draft with, where draft weights are of a type of their own.
    pub(crate) fn draft_output(&self, embedding: &str) -> Result<Option<Linear<B>>, ModelError> {
        let vocabulary = self.config.vocabulary()?;
        let name = if self.tied()? { embedding } else { "lm_head" };
        let part = Part::whole(format!("{name}.weight"), vocabulary, self.hidden).of_vocabulary();
        let copy = self.loader.draft_copy(&part)?;
        Ok(copy.map(|weight| Linear::shared(weight, vocabulary)))
    }

    /// Heads, key/value heads and head size by their usual names.
    pub(crate) fn heads(&self) -> Result<(usize, usize, usize), ModelError> {
        let heads = self.config.count("num_attention_heads")?;
        let kv_heads = self.config.count_or("num_key_value_heads", heads)?;
        crate::config::divides("num_key_value_heads", heads, kv_heads)?;
        let head_dim = match self.config.get("head_dim") {
            Some(_) => self.config.count("head_dim")?,
            None => crate::config::divides("num_attention_heads", self.hidden, heads)?,
        };
        crate::config::width("head_dim", heads, head_dim)?;
        Ok((heads, kv_heads, head_dim))
    }

    /// Attention with the usual options; architectures change what differs.
    pub(crate) fn attention_config(&self) -> Result<AttentionConfig, ModelError> {
        let (heads, kv_heads, head_dim) = self.heads()?;
        let bias = self.config.flag_or("attention_bias", false)?;
        Ok(AttentionConfig {
            inputs: self.hidden,
            hidden: self.hidden,
            heads,
            kv_heads,
            head_dim,
            gated: false,
            qkv_bias: bias,
            output_bias: bias,
            head_norms: None,
            rotary: true,
            scale: AttentionConfig::default_scale(head_dim),
        })
    }

    /// The rope of the configuration, with the divisors that GGUF files store as a tensor.
    pub(crate) fn rope(&self, head_dim: usize) -> Result<RopeConfig, ModelError> {
        let rope = RopeConfig::read(self.config, head_dim)?;
        if self.loader.gguf().is_some() && self.loader.has("rope_freqs.weight", false) {
            let factors = self
                .loader
                .vector("rope_freqs.weight", &[rope.frequencies.len()])?;
            return rope.divide_by(&factors);
        }
        Ok(rope)
    }

    /// Fails for activations other than SiLU.
    pub(crate) fn expect_silu(&self) -> Result<(), ModelError> {
        match self.config.text("hidden_act")? {
            None | Some("silu" | "swish") => Ok(()),
            Some(other) => Err(ModelError::config(
                "hidden_act",
                format!("`{other}` is not supported"),
            )),
        }
    }
}

/// Per layer, whether the list in `field` calls it attention (rather than recurrent); `None` without a list.
pub(crate) fn attention_layers(config: &Config<'_>, field: &str) -> Result<Option<Vec<bool>>, ModelError> {
    let Some(kinds) = config.texts(field)? else {
        return Ok(None);
    };
    let layers = config.layers()?;
    if kinds.len() != layers {
        return Err(ModelError::config(
            field,
            format!("{} entries for {layers} layers", kinds.len()),
        ));
    }
    let is_attention = |kind: &str| match kind {
        "full_attention" | "attention" => Ok(true),
        "linear_attention" | "mamba" => Ok(false),
        other => Err(ModelError::config(field, format!("unknown layer type `{other}`"))),
    };
    kinds
        .into_iter()
        .map(is_attention)
        .collect::<Result<_, _>>()
        .map(Some)
}

fn eos_tokens(config: &Config<'_>) -> Result<Vec<TokenId>, ModelError> {
    let Some(value) = config.get_any("eos_token_id") else {
        return Ok(Vec::new());
    };
    token_list(value).ok_or_else(|| ModelError::config("eos_token_id", format!("{value} is not a token")))
}

/// One token id or a list of them.
pub(crate) fn token_list(value: &serde_json::Value) -> Option<Vec<TokenId>> {
    let token = |value: &serde_json::Value| value.as_u64().and_then(|id| TokenId::try_from(id).ok());
    match value {
        serde_json::Value::Array(list) => list.iter().map(token).collect(),
        one => token(one).map(|id| vec![id]),
    }
}

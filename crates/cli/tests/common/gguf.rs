//! A GGUF file to run.

use super::repository;
use paceline_weights::Checkpoint;
use paceline_weights::gguf_writer::{GgufWriter, Meta};
use serde_json::Value;
use std::path::Path;

/// A reference model whose matrix rows need no reordering, as a GGUF file with one token per byte.
pub(crate) fn write(path: &Path) {
    write_with(path, []);
}

/// The same with more keys.
pub(crate) fn write_with(path: &Path, keys: impl IntoIterator<Item = (String, Meta)>) {
    let folder = Checkpoint::open(&repository("fixtures/qwen3")).unwrap();
    let mut writer = described(&folder);
    for (key, value) in keys {
        writer.key(&key, value);
    }
    for tensor in folder.tensors() {
        writer.tensor(&stored_name(tensor.name), tensor.dtype, tensor.shape, tensor.data);
    }
    writer.write(path).unwrap();
}

/// The same in parts: `stem-00001-of-00003.gguf` and so on.
pub(crate) fn write_parts(stem: &Path, count: u16) {
    let folder = Checkpoint::open(&repository("fixtures/qwen3")).unwrap();
    for part in 0..count {
        let mut writer = if part == 0 {
            described(&folder)
        } else {
            GgufWriter::new()
        };
        writer
            .key("split.no", Meta::U16(part))
            .key("split.count", Meta::U16(count))
            .key("split.tensors.count", Meta::I32(folder.tensors().count() as i32));
        for tensor in folder.tensors().skip(part.into()).step_by(count.into()) {
            writer.tensor(&stored_name(tensor.name), tensor.dtype, tensor.shape, tensor.data);
        }
        let name = format!("{}-{:05}-of-{count:05}.gguf", stem.display(), part + 1);
        writer.write(Path::new(&name)).unwrap();
    }
}

/// What comes before the tensors.
fn described(folder: &Checkpoint) -> GgufWriter {
    let config = folder.config().unwrap();
    let mut writer = GgufWriter::new();
    writer.key("general.architecture", Meta::string("qwen3"));
    for (key, field) in [
        ("block_count", "num_hidden_layers"),
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("context_length", "max_position_embeddings"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("attention.key_length", "head_dim"),
    ] {
        let number = config[field].as_u64().unwrap() as u32;
        writer.key(&format!("qwen3.{key}"), Meta::U32(number));
    }
    let number = |value: &Value| value.as_f64().unwrap() as f32;
    let (eps, theta) = (&config["rms_norm_eps"], &config["rope_parameters"]["rope_theta"]);
    writer.key("qwen3.attention.layer_norm_rms_epsilon", Meta::F32(number(eps)));
    writer.key("qwen3.rope.freq_base", Meta::F32(number(theta)));
    write_tokenizer(&mut writer);
    writer
}

fn write_tokenizer(writer: &mut GgufWriter) {
    // Byte-level vocabularies write bytes that are no visible character as characters from 256 on.
    let visible = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 256;
    let letters = (0..256_u32).map(|byte| {
        let code = if visible(byte) { byte } else { next };
        next += u32::from(code == next);
        char::from_u32(code).unwrap().to_string()
    });
    writer.key("tokenizer.ggml.model", Meta::string("gpt2"));
    writer.key("tokenizer.ggml.pre", Meta::string("default"));
    writer.key("tokenizer.ggml.tokens", Meta::strings(letters));
    writer.key("tokenizer.ggml.merges", Meta::strings::<&str>([]));
    writer.key("tokenizer.ggml.eos_token_id", Meta::U32(2));
    let template = "{% for message in messages %}<{{ message.content }}>{% endfor %}";
    writer.key("tokenizer.chat_template", Meta::string(template));
}

fn stored_name(name: &str) -> String {
    let renames = [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers", "blk"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.", "attn_"),
        ("mlp.", "ffn_"),
        ("_proj", ""),
    ];
    renames
        .iter()
        .fold(name.to_owned(), |name, (from, to)| name.replace(from, to))
}

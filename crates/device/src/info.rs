//! What an engine has to know of a device before it plans anything on it.

use paceline_types::DType;
use std::fmt;

/// A device as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The name that users give it: `cpu`, `cuda:0`.
    pub name: String,
    /// What it is, in words.
    pub description: String,
    /// What its kernels were made for.
    pub kernels: String,
    /// How it stores what is not a weight.
    pub elements: ElementTypes,
    /// Storage starts at multiples of this many bytes.
    pub alignment: u64,
    /// Bytes there are, as far as it is known.
    pub total_memory: Option<u64>,
    /// Bytes that may be taken, as far as it is known.
    pub free_memory: Option<u64>,
    /// Its memory is the host's: what it takes, the host no longer has.
    pub shares_host_memory: bool,
    /// Blocks have a power of two of tokens: others would take other kernels, and results would depend on the block size.
    pub power_of_two_blocks: bool,
    /// It keeps quantised weights as they are, so that floating-point ones can be quantised when they are loaded.
    pub quantises: bool,
    /// What engines on it do at a time where nothing is said.
    pub usual: UsualLoad,
}

/// How much an engine does at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsualLoad {
    /// Requests.
    pub sequences: usize,
    /// Tokens of a step.
    pub tokens: usize,
}

impl UsualLoad {
    /// For a device that computes about as fast as it reads: more at a time makes everybody wait.
    pub const SMALL: Self = Self {
        sequences: 16,
        tokens: 512,
    };
    /// For a device that computes far more than it reads: few at a time would leave it idle.
    pub const LARGE: Self = Self {
        sequences: 256,
        tokens: 8192,
    };
}

/// The types of elements in a device's storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementTypes {
    /// What layers pass on, convolution windows included.
    pub activations: DType,
    /// Keys and values in blocks.
    pub kv: DType,
    /// Recurrent states, and what drafts would do to them.
    pub states: DType,
}

impl ElementTypes {
    /// Everything in full precision.
    pub const F32: Self = Self {
        activations: DType::F32,
        kv: DType::F32,
        states: DType::F32,
    };

    /// Bytes of an activation.
    pub const fn activation_bytes(&self) -> u64 {
        self.activations.block_bytes() as u64
    }

    /// Bytes of an element of a key or value.
    pub const fn kv_bytes(&self) -> u64 {
        self.kv.block_bytes() as u64
    }

    /// Bytes of an element of a recurrent state.
    pub const fn state_bytes(&self) -> u64 {
        self.states.block_bytes() as u64
    }
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.description)
    }
}

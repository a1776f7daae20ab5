//! Keys and values, and attention over them.

use crate::arguments::arguments;
use crate::cuda::Cuda;
use paceline_device::{Attention, KeyValueStore};

arguments! { "attention.h"; }

impl Cuda {
    pub(crate) fn enqueue_store_kv(&self, _args: &KeyValueStore<'_, Self>) {
        self.missing("store_kv");
    }

    pub(crate) fn enqueue_attention(&self, _args: &Attention<'_, Self>) {
        self.missing("attention");
    }
}

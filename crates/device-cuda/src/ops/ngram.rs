//! Drafts from the text.

use crate::arguments::arguments;
use crate::cuda::Cuda;
use paceline_device::ProposeNgram;

arguments! { "ngram.h"; }

impl Cuda {
    pub(crate) fn enqueue_propose_ngram(&self, _args: &ProposeNgram<'_, Self>) {
        self.missing("propose_ngram");
    }
}

//! Texts that stop where a test wants them to.

use paceline_types::{Constraint, ConstraintError, Matcher, TokenId, TokenMask};
use std::sync::{Arc, Condvar, Mutex};

/// Holds texts up until it is dropped.
#[derive(Debug)]
pub struct Gate(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    open: Mutex<bool>,
    opened: Condvar,
}

/// Any text, which does not get on behind a number of tokens while there is a gate.
#[derive(Debug)]
struct Held {
    shared: Arc<Shared>,
    after: usize,
    vocabulary: usize,
}

struct HeldText {
    shared: Arc<Shared>,
    left: usize,
    vocabulary: usize,
}

/// A constraint that allows every token of a vocabulary, and the gate that holds its texts up behind `after` tokens or a few
/// more. What ends them until then is something else, however fast or slow the machine is.
pub fn held(after: usize, vocabulary: usize) -> (Gate, Arc<dyn Constraint>) {
    let shared = Arc::new(Shared::default());
    let constraint = Held {
        shared: Arc::clone(&shared),
        after,
        vocabulary,
    };
    (Gate(shared), Arc::new(constraint))
}

impl Drop for Gate {
    fn drop(&mut self) {
        *self.0.open.lock().expect("no holder panics") = true;
        self.0.opened.notify_all();
    }
}

impl Constraint for Held {
    fn matcher(&self) -> Box<dyn Matcher> {
        Box::new(HeldText {
            shared: Arc::clone(&self.shared),
            left: self.after,
            vocabulary: self.vocabulary,
        })
    }
}

impl Matcher for HeldText {
    fn commit(&mut self, tokens: &[TokenId]) -> Result<(), ConstraintError> {
        self.left = self.left.saturating_sub(tokens.len());
        Ok(())
    }

    fn forced(&mut self, _most: usize) -> Result<Vec<TokenId>, ConstraintError> {
        Ok(Vec::new())
    }

    fn masks(&mut self, drafts: &[TokenId]) -> Result<Vec<TokenMask>, ConstraintError> {
        if self.left == 0 {
            let open = self.shared.open.lock().expect("no holder panics");
            let _open = self.shared.opened.wait_while(open, |open| !*open);
        }
        let words = vec![u32::MAX; self.vocabulary.div_ceil(32)];
        Ok(vec![TokenMask::new(words); drafts.len() + 1])
    }

    fn is_finished(&self) -> bool {
        false
    }
}

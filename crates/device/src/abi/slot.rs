//! Slots: what the device knows of each request.

use super::SamplingRow;
use paceline_types::MAX_DRAFTS;

words! {
    /// A slot's state.
    pub struct Slot {
        /// Tells this owner of the slot from the ones before.
        pub generation: u32,
        /// Tokens known: prompt and text. All but the newest are in the caches.
        pub length: i32,
        /// Not 0: plan rows of this slot do nothing.
        pub finished: i32,
        /// Position at which the recurrent state stands, as in [`RequestRow::state_at`](super::RequestRow::state_at).
        pub state_at: i32,
        /// Drafts to verify next.
        pub draft_count: i32,
        /// The request ends when it is this long.
        pub max_length: i32,
        /// No stop token is chosen before it is this long.
        pub min_length: i32,
        /// Tokens of the prompt.
        pub prompt_length: i32,
        /// Snapshot to start the recurrent state from, or -1. Used once.
        pub restore: i32,
        /// Where the drafts came from: 0 or one of the `FROM` constants.
        pub source: i32,
        /// Tokens whose n-grams are in the index.
        pub indexed: i32,
        /// Position at which the draft model's recurrent state stands; -1 once it has missed tokens of this owner, which
        /// makes the state useless.
        pub draft_state_at: i32,
        /// How its tokens are chosen.
        pub sampling: SamplingRow,
        /// Multiplies or divides logits of known tokens.
        pub repetition_penalty: f32,
        /// Subtracted for tokens of the text.
        pub presence_penalty: f32,
        /// Subtracted per occurrence in the text.
        pub frequency_penalty: f32,
        /// The newest token. It enters the history when it is run: until then its block may not be there.
        pub newest: i32,
        /// The drafts behind the newest token: together they are the text that is not in the history.
        pub drafts: [i32; MAX_DRAFTS],
    }

    /// Drafts from the slot's own text.
    const FROM_NGRAM = 1;
    /// Drafts from a head or a model.
    const FROM_NEURAL = 2;
    /// Drafts that a grammar leaves no choice about.
    const FROM_GRAMMAR = 3;
}

impl Slot {
    /// Whether plan rows that are meant for this owner run.
    pub fn runs(&self, generation: u32) -> bool {
        self.generation == generation && self.finished == 0
    }

    /// The token `place` behind the newest one: itself, or a draft.
    pub fn pending_token(&self, place: usize) -> i32 {
        match place {
            0 => self.newest,
            place => self.drafts[place - 1],
        }
    }
}

/// Words for the lists of a slot.
pub const LIST_WORDS: usize = 1024;

/// The lists of a slot: stop tokens, logit biases, bad words. Each is its number of entries and then the entries: a
/// token; a token and a bias; a length and that many tokens.
#[derive(Clone, Copy, Debug)]
pub struct SlotLists<'a>(&'a [i32]);

impl<'a> SlotLists<'a> {
    /// The lists of slot `index` in the lists of all slots.
    pub fn of(lists: &'a [i32], index: usize) -> Self {
        Self(&lists[index * LIST_WORDS..][..LIST_WORDS])
    }

    /// Lists as a device reads them.
    pub fn encode(stop_tokens: &[u32], biases: &[(u32, f32)], bad_words: &[Vec<u32>]) -> Vec<i32> {
        let mut words = vec![stop_tokens.len() as i32];
        words.extend(stop_tokens.iter().map(|token| *token as i32));
        words.push(biases.len() as i32);
        for (token, bias) in biases {
            words.extend([*token as i32, bias.to_bits() as i32]);
        }
        words.push(bad_words.len() as i32);
        for word in bad_words {
            words.push(word.len() as i32);
            words.extend(word.iter().map(|token| *token as i32));
        }
        words
    }

    /// Tokens that end the request.
    pub fn stop_tokens(&self) -> &'a [i32] {
        &self.0[1..=self.0[0] as usize]
    }

    /// Tokens and what is added to their logits.
    pub fn biases(&self) -> impl Iterator<Item = (i32, f32)> + use<'a> {
        let list = self.biases_at();
        let pairs = list[1..=2 * list[0] as usize].chunks_exact(2);
        pairs.map(|pair| (pair[0], f32::from_bits(pair[1] as u32)))
    }

    /// Sequences of tokens that must not be completed.
    pub fn bad_words(&self) -> impl Iterator<Item = &'a [i32]> + use<'a> {
        let list = self.biases_at();
        let list = &list[1 + 2 * list[0] as usize..];
        let mut rest = &list[1..];
        (0..list[0]).map(move |_| {
            let (word, others) = rest[1..].split_at(rest[0] as usize);
            rest = others;
            word
        })
    }

    fn biases_at(&self) -> &'a [i32] {
        &self.0[1 + self.0[0] as usize..]
    }
}

//! Drafts from the slots' own texts.

//! Passes of neural drafters: what they run over, and what becomes of their tokens.

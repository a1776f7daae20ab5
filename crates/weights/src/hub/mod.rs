//! Models from the Hugging Face hub.

"""RecGuide: self-speculative decoding with one backbone."""

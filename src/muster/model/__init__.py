"""A decoder-only language model of the Llama family: weights, tokenizer, and a forward pass in plain torch.

    resolve(name) ─► folder ─┬─ load ──► (LlamaConfig, state) ─► Llama ─► hidden ─► logits      (torch)
                             └─ tokenizer_from ─► ChatTokenizer                                 (no torch)

Law: trainer and engine read the same folder, use the same parameter names (Hugging Face's) and the same
`digest`; neither knows the other.
"""

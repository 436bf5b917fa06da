"""Transport of published weights to the machine of an engine, both ends of it. No torch.

    trainer's process                                      the machine of an engine
    publish.* ─► delta, tensors, adapter ─► files, serve ══► fetch, pace ─► Receiver ─► one whole local file

Law: what arrives is proven by its digest before an engine sees it, whatever the way and the form.
"""

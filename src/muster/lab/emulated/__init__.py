"""A continuous-batching server without a model: its time from a few constants, its cache and queue for real.

Law: what a scheduler, a router or a benchmark can see of a server is emulated exactly (queue, batch, chunked prefill,
prefix cache, cache pressure, preemption, pauses, versions per token); what a token says is made up. Deterministic,
and on the loop's own clock: a virtual hour of serving costs one timer for every change of the batch.

    port call ─► replica ─┐                ┌─ batch ─┬─ radix      which prompt tokens are cached
    HTTP ─► serve ────────┴► engine ─► core ┤         └─ decoding   thousands of steps as one stride
                             one timer      ├─ stride ─── timing    seconds of a step from its work
                                            └─ replies              what a request is answered

    presets     named servers, from public figures          calibrate   fits the constants to a live server
"""

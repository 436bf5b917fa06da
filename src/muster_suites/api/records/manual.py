"""What the service says about itself at GET /v1. Travels into the image of a task."""

MANUAL = """\
Records service. Bodies and answers are JSON.

POST   /v1/token           {"client_id": .., "client_secret": ..} -> access_token, good for so many requests
Every other call needs the header  Authorization: Bearer TOKEN  (401: get another token).

GET    /v1/KIND            one page of records: ?limit=1..25, and ?page=N or ?cursor=NEXT_CURSOR, as the answer says
GET    /v1/KIND/ID         one record; the header ETag is its version
POST   /v1/KIND            make one (201). With the header Idempotency-Key: ANYTHING it can be sent again safely
PATCH  /v1/KIND/ID         change some fields; needs If-Match: ETAG (428 without, 412 if it was changed since)
DELETE /v1/KIND/ID         needs If-Match: ETAG as well
KIND is one of  contacts orders refunds reports accounts documents volumes snapshots items members assets

GET    /v1/transfers
POST   /v1/transfers       {"source": NAME, "target": NAME, "amount_cents": N, "note": TEXT}
POST   /v1/batches         {"transfers": [..]}  all or none; no account may be below its floor when it is done
POST   /v1/lookups         {"serial": ..} -> 202 and a job
GET    /v1/jobs/ID         state: running, done (with result) or failed (with reason)

Errors: 422 says field by field what is wrong. 409: it exists, or is in use. 429: wait for Retry-After seconds, then
send it again. 503: nobody knows whether it was done.
"""

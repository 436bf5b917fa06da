"""The tables of the records service. Money is in cents, days are ISO dates. Travels into the image of a task.

`version` counts the changes of a row and is its ETag. `edits` holds what other clients are about to change: the first
of a document's edits comes between the agent's reading and its writing.
"""

SCHEMA = """
CREATE TABLE answers (key TEXT PRIMARY KEY, asked TEXT NOT NULL, status INTEGER NOT NULL, body TEXT NOT NULL);
CREATE TABLE jobs (id INTEGER PRIMARY KEY, serial TEXT NOT NULL, polls INTEGER NOT NULL, state TEXT NOT NULL);
CREATE TABLE edits (id INTEGER PRIMARY KEY, document_id INTEGER NOT NULL, tag TEXT NOT NULL);
CREATE TABLE contacts (
    id INTEGER PRIMARY KEY, email TEXT NOT NULL UNIQUE, name TEXT NOT NULL, phone TEXT NOT NULL, city TEXT NOT NULL,
    tier TEXT NOT NULL DEFAULT 'basic', version INTEGER NOT NULL DEFAULT 1
);
CREATE TABLE orders (
    id INTEGER PRIMARY KEY, number TEXT NOT NULL UNIQUE, region TEXT NOT NULL, status TEXT NOT NULL,
    placed_on TEXT NOT NULL, total_cents INTEGER NOT NULL, version INTEGER NOT NULL DEFAULT 1
);
CREATE TABLE refunds (
    id INTEGER PRIMARY KEY, order_number TEXT NOT NULL, amount_cents INTEGER NOT NULL,
    version INTEGER NOT NULL DEFAULT 1
);
CREATE TABLE reports (
    id INTEGER PRIMARY KEY, region TEXT NOT NULL UNIQUE, orders INTEGER NOT NULL, total_cents INTEGER NOT NULL,
    version INTEGER NOT NULL DEFAULT 1
);
CREATE TABLE accounts (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, balance_cents INTEGER NOT NULL, floor_cents INTEGER NOT NULL,
    version INTEGER NOT NULL DEFAULT 1
);
CREATE TABLE transfers (
    id INTEGER PRIMARY KEY, source TEXT NOT NULL, target TEXT NOT NULL, amount_cents INTEGER NOT NULL,
    note TEXT NOT NULL
);
CREATE TABLE documents (
    id INTEGER PRIMARY KEY, title TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, tags TEXT NOT NULL DEFAULT '',
    version INTEGER NOT NULL DEFAULT 1
);
CREATE TABLE volumes (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, last_used TEXT NOT NULL,
    protected TEXT NOT NULL DEFAULT 'no', version INTEGER NOT NULL DEFAULT 1
);
CREATE TABLE snapshots (
    id INTEGER PRIMARY KEY, volume_id INTEGER NOT NULL REFERENCES volumes, keep TEXT NOT NULL DEFAULT 'no',
    version INTEGER NOT NULL DEFAULT 1
);
CREATE TABLE items (
    id INTEGER PRIMARY KEY, code TEXT NOT NULL, name TEXT NOT NULL, quantity INTEGER NOT NULL,
    version INTEGER NOT NULL DEFAULT 1
);
CREATE TABLE members (
    id INTEGER PRIMARY KEY, login TEXT NOT NULL UNIQUE, department TEXT NOT NULL, active TEXT NOT NULL DEFAULT 'yes',
    roles TEXT NOT NULL DEFAULT '', version INTEGER NOT NULL DEFAULT 1
);
CREATE TABLE assets (
    id INTEGER PRIMARY KEY, serial TEXT NOT NULL UNIQUE, model TEXT NOT NULL DEFAULT '',
    weight_g INTEGER NOT NULL DEFAULT 0, version INTEGER NOT NULL DEFAULT 1
);
CREATE TABLE catalogue (serial TEXT PRIMARY KEY, model TEXT NOT NULL, weight_g INTEGER NOT NULL);
"""

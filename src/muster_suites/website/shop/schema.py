"""The tables of the shop. Money is in cents, days are ISO dates. Travels into the image of a task."""

SCHEMA = """
CREATE TABLE users (
    id INTEGER PRIMARY KEY, login TEXT NOT NULL UNIQUE, password TEXT NOT NULL, role TEXT NOT NULL DEFAULT 'customer',
    name TEXT NOT NULL, email TEXT NOT NULL, street TEXT NOT NULL, city TEXT NOT NULL, zip TEXT NOT NULL,
    newsletter TEXT NOT NULL DEFAULT 'no'
);
CREATE TABLE documents (name TEXT PRIMARY KEY, title TEXT NOT NULL, text TEXT NOT NULL);
CREATE TABLE products (
    id INTEGER PRIMARY KEY, sku TEXT NOT NULL UNIQUE, name TEXT NOT NULL, category TEXT NOT NULL,
    description TEXT NOT NULL DEFAULT '', price_cents INTEGER NOT NULL CHECK (price_cents >= 0),
    stock INTEGER NOT NULL CHECK (stock >= 0)
);
CREATE TABLE coupons (
    code TEXT PRIMARY KEY, percent INTEGER NOT NULL, minimum_cents INTEGER NOT NULL DEFAULT 0,
    category TEXT NOT NULL DEFAULT '', valid_until TEXT NOT NULL
);
CREATE TABLE carts (
    user_id INTEGER NOT NULL REFERENCES users, product_id INTEGER NOT NULL REFERENCES products,
    quantity INTEGER NOT NULL, PRIMARY KEY (user_id, product_id)
);
CREATE TABLE orders (
    id INTEGER PRIMARY KEY, user_id INTEGER NOT NULL REFERENCES users, placed_on TEXT NOT NULL, status TEXT NOT NULL,
    coupon TEXT NOT NULL DEFAULT '', total_cents INTEGER NOT NULL, street TEXT NOT NULL, city TEXT NOT NULL,
    zip TEXT NOT NULL, reason TEXT NOT NULL DEFAULT ''
);
CREATE TABLE order_lines (
    order_id INTEGER NOT NULL REFERENCES orders, product_id INTEGER NOT NULL REFERENCES products,
    quantity INTEGER NOT NULL, price_cents INTEGER NOT NULL, PRIMARY KEY (order_id, product_id)
);
CREATE TABLE returns (
    id INTEGER PRIMARY KEY, order_id INTEGER NOT NULL REFERENCES orders,
    product_id INTEGER NOT NULL REFERENCES products, reason TEXT NOT NULL, UNIQUE (order_id, product_id)
);
CREATE TABLE wishes (
    user_id INTEGER NOT NULL REFERENCES users, product_id INTEGER NOT NULL REFERENCES products,
    priority INTEGER NOT NULL, PRIMARY KEY (user_id, product_id)
);
CREATE TABLE reviews (
    id INTEGER PRIMARY KEY, product_id INTEGER NOT NULL REFERENCES products, author TEXT NOT NULL,
    stars INTEGER NOT NULL, text TEXT NOT NULL, status TEXT NOT NULL DEFAULT 'pending',
    reason TEXT NOT NULL DEFAULT ''
);
CREATE TABLE tickets (
    id INTEGER PRIMARY KEY, user_id INTEGER NOT NULL REFERENCES users, order_id INTEGER REFERENCES orders,
    subject TEXT NOT NULL, body TEXT NOT NULL, status TEXT NOT NULL DEFAULT 'open', queue TEXT NOT NULL DEFAULT '',
    answer TEXT NOT NULL DEFAULT ''
);
CREATE TABLE workshops (id INTEGER PRIMARY KEY, title TEXT NOT NULL, place TEXT NOT NULL);
CREATE TABLE slots (
    id INTEGER PRIMARY KEY, workshop_id INTEGER NOT NULL REFERENCES workshops, day TEXT NOT NULL, level TEXT NOT NULL,
    price_cents INTEGER NOT NULL, free INTEGER NOT NULL CHECK (free >= 0)
);
CREATE TABLE bookings (
    id INTEGER PRIMARY KEY, user_id INTEGER NOT NULL REFERENCES users, slot_id INTEGER NOT NULL REFERENCES slots,
    seats INTEGER NOT NULL, material TEXT NOT NULL, contact TEXT NOT NULL, phone TEXT NOT NULL,
    total_cents INTEGER NOT NULL
);
"""

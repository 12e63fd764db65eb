"""The `busway` command. The outermost ring: it may import all of `shared`, and nothing imports it."""

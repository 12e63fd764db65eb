"""The endpoints: parse, call, return."""

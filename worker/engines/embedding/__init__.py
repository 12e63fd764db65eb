"""The embedding engine: many texts in, a vector for each out."""

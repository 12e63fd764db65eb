"""HTTP in, queue out, frames relayed. Knows no model and no tensor."""

"""The storm: real processes, real clients, and everything that can be broken, for as long as you like."""

"""What the product costs and how fast it is, measured beside hand-written peers: `make bench`. Not part of the wheel."""

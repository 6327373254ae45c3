"""Our side of each case, in the shape of a peer (see benchmarks.peers)."""

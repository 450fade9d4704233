"""Search: every plan of a model on a cluster, judged, and the ones that nothing beats."""

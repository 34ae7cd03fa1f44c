"""Second derivatives: products with vectors, traced graphs, models as functions."""

"""A desk for one legal matter: documents with permissions, search, and an agent that answers questions about them."""

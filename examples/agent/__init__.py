"""An agent answers customer calls: a language model, tools, searches, and a person who approves refunds."""

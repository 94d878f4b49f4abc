"""State machines: drawn steps, done by an engine and by the model, and everything that can be seen compared after each."""

"""The contract as a program: what a store may answer, written for reading, without storage, tasks or a clock of its own.

Everything is a function of what was done before and of *now*, which is an argument, in microseconds. Nothing is shared with
core: what core computes is computed here anew, or the two would be wrong together. A method that stands for a call changes
nothing; it gives an `Allowed`: what the call may answer, and what is so once it has answered that. Where the contract
leaves a choice (an id, an offset, the jitter of a retry) the model takes over what the engine chose.
"""

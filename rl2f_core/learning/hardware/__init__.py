"""Speed and memory of this machine: ceilings, rollout and update of a model, and settings that follow from them."""

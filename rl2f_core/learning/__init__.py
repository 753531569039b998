"""From rollouts to updated weights: methods, learner, training."""

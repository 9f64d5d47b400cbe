"""What a person sees of a running job: a view model that is pure, and the two ways of showing it."""

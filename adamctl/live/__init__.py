"""What a person sees of a running job: a pure view model, and two ways of showing it."""

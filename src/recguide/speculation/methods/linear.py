"""LinearSpec: a draft forward, then a verification forward, in turn (paper §3.1)."""

from recguide.speculation.methods.method import Method

LINEAR = Method("linear")

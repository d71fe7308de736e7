"""Asks a live server which of a handful of sentences means the same as a query: `python nearest.py URL`."""

import sys

import numpy as np

import tauten

QUERY = "How do I get my money back?"
SENTENCES = [
    "The weather in Lisbon is warm in May.",
    "You can request a refund within thirty days.",
    "Our office is closed on public holidays.",
    "The money market fund lost two percent.",
    "Turn the lever to the left to open the valve.",
]


def main(url: str) -> None:
    """Embeds the query and the sentences in one request and prints them by cosine."""
    with tauten.Client(url) as client:
        answer = client.predict("minilm", [QUERY, *SENTENCES])
    vectors = np.array(answer["embedding"])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = vectors[1:] @ vectors[0]
    order = np.argsort(-cosines)
    for place in order:
        print(f"  {cosines[place]:.3f}  {SENTENCES[place]}")
    print(f"nearest to {QUERY!r}: {SENTENCES[order[0]]!r}")


if __name__ == "__main__":
    main(sys.argv[1])

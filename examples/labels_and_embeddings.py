"""Ask many questions about one text by scoring labels, and find the text that is most alike.

    python examples/labels_and_embeddings.py [MODEL]

The text is computed once for all questions: each forks from its cached blocks. A label's score is
the log-probability of its tokens after the question. An embedding is the model's final hidden state
of a text's last token, scaled to length 1; two texts' similarity is the cosine of theirs.
"""

import sys

from octavo import LLM

TEXT = (
    "The lighthouse stands on a cliff north of the village. Its keeper is called Anna, she is "
    "sixty years old and has kept the flame for half of her life. Every evening she climbs the "
    "stairs to light it, and every morning she comes back to put it out."
)
QUESTIONS = [
    ("\nQuestion: What is the keeper's name?\nAnswer:", [" Anna", " Bob", " Elizabeth"]),
    ("\nQuestion: Is the keeper young or old?\nAnswer: The keeper is", [" young", " old"]),
]
SENTENCES = ["A kitten is resting on a rug.", "Share prices fell sharply today."]


def main(model: str) -> None:
    with LLM(model) as llm:
        answers = llm.systemone(TEXT, QUESTIONS)
        for (question, _), scores in zip(QUESTIONS, answers, strict=True):
            shares = ", ".join(f"{s.label.strip()} {s.probability:.2f}" for s in scores)
            print(f"{question.splitlines()[1]} {shares}")
        counters = llm.stats().counters
        print(f"computed {counters['computed_tokens']}, reused {counters['prefix_hit_tokens']}")
        for sentence, score in zip(
            SENTENCES, llm.score("The cat sat on the mat.", SENTENCES), strict=True
        ):
            print(f"{score:.2f} {sentence}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "smollm2")

"""Asks a vLLM server, and prints how many drafted tokens it accepted: `python -m examples.client`.

It needs the package `openai`, and in another shell `vllm serve --config examples/serving/server.yaml`.
"""

from __future__ import annotations

import argparse

from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk


def acceptance(answer: ChatCompletion | ChatCompletionChunk) -> str:
    """vLLM adds `metrics` to an answer, or to the last chunk of a stream, of a server that runs with
    `--per-request-spec-decode-metrics summary`; not where a request asks for several answers."""
    stats = ((answer.model_extra or {}).get("metrics") or {}).get("speculative_decoding")
    if not stats:
        return "no acceptance: no draft, one token, or no --per-request-spec-decode-metrics"
    return (
        f"{stats['mean_acceptance_length']:.2f} tokens per step, "
        f"{stats['num_accepted_draft_tokens']} of {stats['num_draft_tokens']} drafted tokens accepted"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1", help="with the /v1")
    parser.add_argument("--api-key", default="none", help="as in `vllm serve --api-key`")
    parser.add_argument("--prompt", default="import os\n\ndef read(path):\n")
    given = parser.parse_args()

    with OpenAI(base_url=given.base_url, api_key=given.api_key) as client:
        model = client.models.list().data[0].id
        question = {"role": "user", "content": given.prompt}
        asked = {"model": model, "messages": [question], "max_tokens": 64, "temperature": 0}
        answer = client.chat.completions.create(**asked)
        print(answer.choices[0].message.content)
        print(f"[whole] {acceptance(answer)}")

        stream = client.chat.completions.create(
            **asked, stream=True, stream_options={"include_usage": True}
        )
        for chunk in stream:
            for choice in chunk.choices:
                print(choice.delta.content or "", end="", flush=True)
        print(f"\n[streamed] {acceptance(chunk)}")  # the last chunk has the usage, and no text


if __name__ == "__main__":
    main()

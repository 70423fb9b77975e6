"""A LLaVA of the sizes of `checkpoints.py`, with random weights, its processor, and an image for it."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.support.checkpoints import HEADS, HIDDEN, INTER, KV_HEADS, LAYERS, VOCAB

IMAGE_TOKEN, SIDE, PATCH = VOCAB - 2, 28, 14
WORDS = [f"w{i}" for i in range(IMAGE_TOKEN)] + ["<image>", "<mask>"]


def write_llava(folder: Path) -> Path:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    text = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=INTER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        vocab_size=VOCAB,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
    )
    vision = CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=SIDE,
        patch_size=PATCH,
    )
    torch.manual_seed(0)
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=IMAGE_TOKEN,
        image_seq_length=(SIDE // PATCH) ** 2,
    )
    model = LlavaForConditionalGeneration(config)
    # The default scale makes every logit a near-tie.
    for parameter in model.model.language_model.parameters():
        parameter.data.mul_(4.0 if parameter.ndim == 2 else 1.0)
    for parameter in model.model.multi_modal_projector.parameters():
        parameter.data.mul_(20.0)
    model.save_pretrained(folder)
    _name_the_tower_as_published(folder / "model.safetensors")
    _write_processor(folder)
    return folder


def _name_the_tower_as_published(weights: Path) -> None:
    """transformers 5 leaves `vision_model` out of the names of the tower's tensors."""
    tower, published = "vision_tower.", "vision_tower.vision_model."
    tensors = {
        name if published in name else name.replace(tower, published): tensor
        for name, tensor in load_file(weights).items()
    }
    save_file(tensors, weights, metadata={"format": "pt"})


def _write_processor(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import CLIPImageProcessor, LlavaProcessor, PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="w0", additional_special_tokens=["<image>"]
    )
    side = {"height": SIDE, "width": SIDE}
    images = CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size=side)
    LlavaProcessor(
        images,
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        image_token="<image>",
        num_additional_image_tokens=1,
    ).save_pretrained(folder)


def picture(seed: int):  # type: ignore[no-untyped-def]
    """A PIL image of noise."""
    from PIL import Image

    pixels = torch.randint(0, 256, (SIDE, SIDE, 3), generator=torch.Generator().manual_seed(seed))
    return Image.fromarray(pixels.to(torch.uint8).numpy())

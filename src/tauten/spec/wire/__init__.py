"""Bytes <-> request and reply of the Open Inference Protocol V2, with the binary tensor extension. No I/O.

Both ends of a connection use it: a front decodes requests and encodes replies, the client the other way round.
Tensors are views of the bytes that came (read-only, and aligned only as the sender aligned them); what leaves is handed over as
parts, so that nothing large is copied on its way.
"""

from __future__ import annotations

from tauten.spec.wire.message import Message, Wishes
from tauten.spec.wire.reply import decode_reply, encode_error, encode_reply
from tauten.spec.wire.request import decode_request, encode_request

__all__ = ["Message", "Wishes", "decode_reply", "decode_request", "encode_error", "encode_reply", "encode_request"]

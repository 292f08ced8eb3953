"""bfloat16 inside numba, which has no such type: the pool's bits travel as uint16 and are widened on load.

A bfloat16 is the upper half of a float32, so loading is a shift and storing is a rounding of integers.
The functions are module-level on purpose: numba's disk cache never hits for closures that capture an intrinsic.
"""

# mypy: disable-error-code="misc, no-untyped-def, no-untyped-call"
import llvmlite.ir as ir
import numpy as np
from numba import types
from numba.extending import intrinsic, overload


@intrinsic
def _float_of(typing_context, bits):
    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic
def _bits_of(typing_context, number):
    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(32))

    return types.uint32(types.float32), generate


def load(stored):
    """An element of the pool -> float32."""
    raise NotImplementedError("only inside compiled code")


@overload(load, inline="always")
def _load(stored):
    if stored == types.uint16:
        return lambda stored: _float_of(np.uint32(stored) << np.uint32(16))
    return lambda stored: stored


def store(pool, block, head, offset, dim, number):
    """Write a float32 into pool[block, head, offset, dim]; returns the value as a later load will see it.

    bfloat16 rounds to nearest, ties to even.
    """
    raise NotImplementedError("only inside compiled code")


@overload(store, inline="always")
def _store(pool, block, head, offset, dim, number):
    if pool.dtype == types.uint16:

        def narrow(pool, block, head, offset, dim, number):
            bits = _bits_of(number)
            upper = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
            pool[block, head, offset, dim] = np.uint16(upper)
            return _float_of(np.uint32(upper) << np.uint32(16))

        return narrow

    def keep(pool, block, head, offset, dim, number):
        pool[block, head, offset, dim] = number
        return number

    return keep

// oneDNN 2.x and 3.x differ in how a primitive is described: make() holds the
// whole difference.
#include "brigade/kernels/cpu/product.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>

#include <array>
#include <dnnl.hpp>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "brigade/base/check.h"
#include "brigade/base/error.h"
#include "brigade/kernels/cpu/blocked_product.h"
#include "brigade/kernels/cpu/scratch.h"
#include "brigade/kernels/cpu/tile_product.h"
#include "brigade/ops/describe.h"

namespace brigade::ops {
namespace {

constexpr size_t kMaxPrimitives = 512;

// Everything that a primitive depends on.
struct Shape {
  int64_t m, n, k;
  int64_t a_row, a_column, b_row, b_column, c_row;
  bool wide_operands, wide_result, add, has_bias;
  int threads;
  bool operator==(const Shape&) const = default;
};

struct ShapeHash {
  size_t operator()(const Shape& s) const {
    size_t hash = 0;
    for (const int64_t value :
         {s.m,
          s.n,
          s.k,
          s.a_row,
          s.a_column,
          s.b_row,
          s.b_column,
          s.c_row,
          int64_t{s.wide_operands},
          int64_t{s.wide_result},
          int64_t{s.add},
          int64_t{s.has_bias},
          int64_t{s.threads}})
      hash = hash * 0x9E3779B97F4A7C15U + static_cast<size_t>(value);
    return hash;
  }
};

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

struct Primitive {
  dnnl::matmul matmul;
  dnnl::memory::desc a, b, c, bias, scratchpad;
  std::string implementation;  // oneDNN's name of it
};

Primitive make(const Shape& s) {
  using Type = dnnl::memory::data_type;
  using Dims = dnnl::memory::dims;
  const Type operand = s.wide_operands ? Type::f32 : Type::bf16;
  const Type result = s.wide_result ? Type::f32 : Type::bf16;
  Primitive p;
  p.a = {{s.m, s.k}, operand, Dims{s.a_row, s.a_column}};
  p.b = {{s.k, s.n}, operand, Dims{s.b_row, s.b_column}};
  p.c = {{s.m, s.n}, result, Dims{s.c_row, 1}};
  if (s.has_bias)
    p.bias = {{1, s.n}, result, Dims{s.n, 1}};
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (s.add) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attributes.set_post_ops(sum);
  }
#if DNNL_VERSION_MAJOR >= 3
  const auto description =
      s.has_bias
          ? dnnl::matmul::primitive_desc(
                engine(), p.a, p.b, p.bias, p.c, attributes)
          : dnnl::matmul::primitive_desc(engine(), p.a, p.b, p.c, attributes);
#else
  const auto operation = s.has_bias ? dnnl::matmul::desc(p.a, p.b, p.bias, p.c)
                                    : dnnl::matmul::desc(p.a, p.b, p.c);
  const dnnl::matmul::primitive_desc description(
      operation, attributes, engine());
#endif
  p.matmul = dnnl::matmul(description);
  p.scratchpad = description.scratchpad_desc();
  p.implementation = description.impl_info_str();
  return p;
}

std::shared_ptr<const Primitive> find_or_make(const Shape& shape) {
  static std::mutex mutex;
  static std::unordered_map<Shape, std::shared_ptr<const Primitive>, ShapeHash>
      cache;
  {
    const std::lock_guard lock(mutex);
    const auto found = cache.find(shape);
    if (found != cache.end())
      return found->second;
  }
  auto made = std::make_shared<const Primitive>(make(shape));
  const std::lock_guard lock(mutex);
  if (cache.size() >= kMaxPrimitives)
    cache.clear();
  return cache.emplace(shape, std::move(made)).first->second;
}

// A dim of size 1 may carry any stride: give it the one that looks dense.
std::array<int64_t, 2> strides_of(const torch::Tensor& x) {
  int64_t row = x.stride(0);
  int64_t column = x.stride(1);
  if (x.size(1) == 1 && row != 1)
    column = 1;
  if (x.size(0) == 1 && column != 1)
    row = 1;
  if (x.size(0) == 1 && column == 1)
    row = x.size(1);
  if (x.size(1) == 1 && row == 1)
    column = x.size(0);
  return {row, column};
}

// Whether oneDNN has a fast bf16 product here: it wants AVX512, and has none
// (2.x) or a plain loop (3.x) where the processor lacks it.
bool has_bf16_product() {
  static const bool has = [] {
    constexpr int64_t kSize = 32;
    const Shape small{
        .m = kSize,
        .n = kSize,
        .k = kSize,
        .a_row = kSize,
        .a_column = 1,
        .b_row = kSize,
        .b_column = 1,
        .c_row = kSize,
        .wide_operands = false,
        .wide_result = true,
        .add = false,
        .has_bias = false,
        .threads = 1};
    try {
      return !make(small).implementation.starts_with("ref");
    } catch (const dnnl::error& error) {
      if (error.status != dnnl_unimplemented)
        throw;
      return false;
    }
  }();
  return has;
}

// By libtorch's BLAS, for processors without AVX512 where blocks do not fit.
// oneDNN's float32 product for those asks the C library for aligned memory in
// every call, for which glibc before 2.38 finds no room where it freed as much:
// the heap would grow with every step. bf16 operands are copied: a bf16 value
// is a float32 too, so that only the order of the sums differs.
void product_by_blas(
    const torch::Tensor& a,
    const torch::Tensor& b,
    const torch::Tensor& c,
    Destination destination,
    const torch::Tensor& bias) {
  // As a kernel: not recorded, and the result's version stays as it is, from
  // which gradient synchronisation sees that somebody else wrote to it.
  const at::AutoDispatchBelowADInplaceOrView as_kernel;
  const bool rounded = c.scalar_type() != torch::kFloat;
  torch::Tensor sum = c;
  if (rounded)
    sum = destination == Destination::kAdd
              ? c.to(torch::kFloat)
              : torch::empty(c.sizes(), torch::kFloat);
  const torch::Tensor left = a.to(torch::kFloat);
  const torch::Tensor right = b.to(torch::kFloat);
  if (destination == Destination::kAdd)
    sum.addmm_(left, right);
  else if (bias.defined())
    at::addmm_out(sum, bias.to(torch::kFloat), left, right);
  else
    at::mm_out(sum, left, right);
  if (rounded)
    c.copy_(sum);
}

// With fewer rows, packing the right operand takes longer than it saves.
constexpr int64_t kFewestBlockedRows = 16;

bool blocked_product_fits(
    const torch::Tensor& a,
    const torch::Tensor& c,
    Destination destination) {
  const bool rounds_a_sum =
      destination == Destination::kAdd && c.scalar_type() != torch::kFloat;
  return has_blocked_product() && a.size(0) >= kFewestBlockedRows &&
         c.size(1) >= kPanel && !rounds_a_sum;
}

ProductOperand operand_of(const torch::Tensor& x) {
  const auto [row, column] = strides_of(x);
  return {
      .data = x.data_ptr(),
      .is_bf16 = x.scalar_type() == torch::kBFloat16,
      .row = row,
      .column = column};
}

// By tiles of ours, for processors without AVX512.
void product_by_blocks(
    const torch::Tensor& a,
    const torch::Tensor& b,
    const torch::Tensor& c,
    Destination destination,
    const torch::Tensor& bias) {
  const torch::Tensor wide_bias =
      bias.defined() ? bias.to(torch::kFloat) : bias;
  blocked_product(
      {.a = operand_of(a),
       .b = operand_of(b),
       .c = c.data_ptr(),
       .c_is_bf16 = c.scalar_type() == torch::kBFloat16,
       .c_row = strides_of(c)[0],
       .m = a.size(0),
       .n = b.size(1),
       .k = a.size(1),
       .add = destination == Destination::kAdd,
       .bias = bias.defined() ? wide_bias.data_ptr<float>() : nullptr});
}

bool dense_in_one_dim(const torch::Tensor& x) {
  const auto [row, column] = strides_of(x);
  return (column == 1 && row >= x.size(1)) || (row == 1 && column >= x.size(0));
}

void check(
    const torch::Tensor& a,
    const torch::Tensor& b,
    const torch::Tensor& c,
    const torch::Tensor& bias) {
  require(
      a.dim() == 2 && b.dim() == 2 && c.dim() == 2 && a.size(1) == b.size(0) &&
          c.size(0) == a.size(0) && c.size(1) == b.size(1) &&
          (!bias.defined() || bias.numel() == c.size(1)),
      "product",
      "{} times {} (+ {}) is not {}",
      describe(a),
      describe(b),
      describe(bias),
      describe(c));
}

}  // namespace

bool onednn_multiplies() {
  return has_bf16_product();
}

void product(
    const torch::Tensor& a_in,
    const torch::Tensor& b_in,
    const torch::Tensor& c,
    Destination destination,
    const torch::Tensor& bias) {
  check(a_in, b_in, c, bias);
  if (c.numel() == 0)
    return;
  if (a_in.size(1) == 0) {
    if (destination == Destination::kOverwrite)
      bias.defined() ? c.copy_(bias.expand_as(c)) : c.zero_();
    return;
  }
  const bool has_blocks =
      !onednn_multiplies() && blocked_product_fits(a_in, c, destination);
  if (!onednn_multiplies() && !has_blocks) {
    product_by_blas(a_in, b_in, c, destination, bias);
    return;
  }
  const torch::Tensor a = dense_in_one_dim(a_in) ? a_in : a_in.contiguous();
  const torch::Tensor b = dense_in_one_dim(b_in) ? b_in : b_in.contiguous();
  if (has_blocks) {
    product_by_blocks(a, b, c, destination, bias);
    return;
  }
  const auto [a_row, a_column] = strides_of(a);
  const auto [b_row, b_column] = strides_of(b);
  const auto [c_row, c_column] = strides_of(c);
  BRIGADE_ASSERT(
      c_column == 1 && a.scalar_type() == b.scalar_type(),
      "the result of a product has column stride {}",
      c_column);
  const Shape shape{
      .m = a.size(0),
      .n = b.size(1),
      .k = a.size(1),
      .a_row = a_row,
      .a_column = a_column,
      .b_row = b_row,
      .b_column = b_column,
      .c_row = c_row,
      .wide_operands = a.scalar_type() == torch::kFloat,
      .wide_result = c.scalar_type() == torch::kFloat,
      .add = destination == Destination::kAdd,
      .has_bias = bias.defined(),
      .threads = at::in_parallel_region() ? 1 : at::get_num_threads()};
  try {
    const auto p = find_or_make(shape);
    const auto memory = [](const dnnl::memory::desc& desc, void* data) {
      return dnnl::memory(desc, engine(), data);
    };
    std::unordered_map<int, dnnl::memory> arguments{
        {DNNL_ARG_SRC, memory(p->a, a.data_ptr())},
        {DNNL_ARG_WEIGHTS, memory(p->b, b.data_ptr())},
        {DNNL_ARG_DST, memory(p->c, c.data_ptr())},
        {DNNL_ARG_SCRATCHPAD,
         memory(
             p->scratchpad,
             scratch(ScratchSlot::kProduct, p->scratchpad.get_size()))}};
    if (shape.has_bias)
      arguments.emplace(DNNL_ARG_BIAS, memory(p->bias, bias.data_ptr()));
    thread_local dnnl::stream stream(engine());
    p->matmul.execute(stream, arguments);
    stream.wait();
  } catch (const dnnl::error& error) {
    throw Error(
        ExitCode::kUnexpected,
        fmt::format(
            "[product] oneDNN cannot multiply {} by {} into {}: {}",
            describe(a),
            describe(b),
            describe(c),
            error.what()));
  }
}

}  // namespace brigade::ops

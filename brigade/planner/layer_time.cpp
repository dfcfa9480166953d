#include "brigade/planner/layer_time.h"

#include <algorithm>

#include "brigade/model_spec/shard.h"

namespace brigade::planner {
namespace {

using machine::Collective;
using machine::GroupPlace;
using machine::ProductDtype;

constexpr double kId = 8;  // bytes of a token or a target

class Part {
 public:
  Part(const Training& training, const Layout& layout)
      : training_(training),
        layout_(layout),
        program_(*training.program),
        shape_(training.shape),
        device_(training.machine.device, training.constants),
        tp_(layout.dims.tp),
        element_bytes_(training.precision.activation_bytes) {}

  PartTime layer(int64_t window, LayerMlp mlp) const {
    PartTime time;
    const int64_t h = shape_.hidden;
    const int64_t q = shape_.query_width() / tp_;
    add_linear(h, q + 2 * key_value_width(), time);
    add_linear(q, h, time);
    const bool has_experts = mlp == LayerMlp::kExperts;
    if (shape_.mlp_width(mlp) > 0)
      add_mlp(shape_.mlp_width(mlp), time);
    if (has_experts)
      add_experts(time);
    add_elementwise(time);
    add_attention(window, time);
    const machine::Device& device = training_.machine.device;
    for (const auto pass : kPasses) {
      const double factor = pass == &PartTime::forward ? device.forward_factor
                                                       : device.backward_factor;
      for (const auto part :
           {&PassTime::products, &PassTime::attention, &PassTime::elementwise})
        (time.*pass).*part *= factor;
    }
    add_tensor_parallel(mlp, time);
    if (has_experts)
      add_exchange(time);
    for (const auto pass : kPasses)
      (time.*pass).host = program_.host_s;
    add_recompute(time);
    add_gradients(
        layer_parameters(shape_, mlp),
        has_experts ? expert_parameters(shape_) : 0,
        time);
    return time;
  }

  PartTime embedding() const {
    PartTime time;
    const double bytes = outer_tokens() * outer_width() * element_bytes_;
    time.forward.data = device_.from_host(kId * static_cast<double>(tokens()));
    time.forward.elementwise = passes(2 * bytes);
    time.backward_weight.elementwise = passes_back(4 * bytes);
    // Each rank looks up the rows that it has, and the sum is what all have.
    time.forward.tp = leave_region();
    time.backward_input.tp = enter_region();
    add_gradients(embedding_parameters(shape_), 0, time);
    return time;
  }

  PartTime head() const {
    PartTime time;
    const int64_t rows = vocab_rows_per_rank(shape_.vocab, layout_.dims.tp);
    // Logits stay in 16 bits or more, whatever the layers multiply in.
    const ProductDtype dtype =
        training_.precision.products == ProductDtype::kFp32
            ? ProductDtype::kFp32
            : ProductDtype::kBf16;
    // Kernels pad the vocabulary to whole vectors.
    const int64_t padded = (rows + 63) / 64 * 64;
    const int64_t m = tokens();
    const double weight = device_.weight(padded, shape_.hidden);
    const HeadWork& work = training_.head;
    add_products(m, shape_.hidden, padded, dtype, weight, time);
    time.forward.products *= work.forward_passes;
    const double logits = static_cast<double>(m) * static_cast<double>(rows);
    const double pass = device_.logits(program_.logit_bytes / 2 * logits);
    time.forward.elementwise = work.forward_passes * pass;
    time.backward_input.elementwise = pass;
    const auto tokens_here = static_cast<double>(m);
    time.forward.data =
        device_.from_host(kId * tokens_here + work.teacher_bytes(tokens_here));
    // A maximum and two sums per token, or with a teacher four, each of 4
    // bytes: no rank has all logits.
    const double per_token = 4 * tokens_here;
    const int sums = work.teacher_tokens > 0 ? 4 : 2;
    time.forward.tp =
        enter_region() +
        work.forward_passes *
            (tensor_parallel(Collective::kAllReduce, per_token) +
             tensor_parallel(Collective::kAllReduce, sums * per_token));
    time.backward_input.tp = leave_region();
    add_gradients(head_parameters(shape_), 0, time);
    return time;
  }

 private:
  // The tokens of a micro-batch on one rank.
  int64_t tokens() const {
    return layout_.micro_batch * training_.batch.sequence_tokens /
           layout_.dims.sequence_parts();
  }
  bool shards_tokens() const { return layout_.tokens == TokenLayout::kSharded; }
  // The tokens between the regions of tensor parallel.
  double outer_tokens() const {
    const auto all = static_cast<double>(tokens());
    return shards_tokens() ? all / tp_ : all;
  }
  double outer_width() const { return static_cast<double>(shape_.hidden); }
  // The width of queries, and of keys or values, on this rank.
  double query_width() const {
    return static_cast<double>(shape_.query_width()) / tp_;
  }
  int64_t key_value_width() const {
    return kv_heads_per_rank(shape_.kv_heads, tp_) * shape_.head_dim;
  }

  double passes(double bytes) const {
    return device_.elementwise(program_.elementwise_passes * bytes);
  }
  double passes_back(double bytes) const {
    return device_.elementwise_backward(program_.elementwise_passes * bytes);
  }

  // Adds passes over so many bytes, in forward and in backward.
  void add_passes(double forward, double backward, PartTime& time) const {
    time.forward.elementwise += passes(forward);
    time.backward_input.elementwise += passes_back(backward);
  }

  void add_linear(int64_t in, int64_t out, PartTime& time) const {
    add_linear(tokens(), in, out, time);
  }

  // Y [m, out] = X [m, in] W, and its two gradients; each takes `weight`
  // seconds besides.
  void add_products(
      int64_t m,
      int64_t in,
      int64_t out,
      ProductDtype dtype,
      double weight,
      PartTime& time) const {
    const auto seconds = [&](const machine::Product& product) {
      return device_.product(product, dtype) + weight;
    };
    time.forward.products += seconds({m, out, in});
    time.backward_input.products += seconds({m, in, out});
    time.backward_weight.products += seconds({in, out, m});
  }

  void add_linear(int64_t m, int64_t in, int64_t out, PartTime& time) const {
    const ProductDtype dtype = training_.precision.products;
    add_products(m, in, out, dtype, device_.weight(in, out), time);
    if (dtype == ProductDtype::kBf16 || dtype == ProductDtype::kFp32)
      return;
    // Operands are made smaller: 2 bytes read, 1 written as it is and 1
    // transposed, for the weight gradient.
    const auto quantised = [&](int64_t rows, int64_t width) {
      return device_.memory(
          4.0 * static_cast<double>(rows) * static_cast<double>(width));
    };
    // Weights likewise, once per micro-batch.
    time.forward.elementwise += quantised(m, in) + quantised(in, out);
    time.backward_input.elementwise += quantised(m, out);
  }

  // Reads and writes of each op, in elements per token; see layer_time.h for
  // the ops. A norm reads x and writes y; its backward reads x, dy and the
  // residual's gradient and writes dx. A residual reads two and writes one; its
  // backward is free. Where it writes a mask, its backward reads that with dy.
  void add_elementwise(PartTime& time) const {
    const double outer = outer_tokens() * outer_width();
    const double mask = shape_.mask_bytes;
    time.forward.elementwise +=
        shape_.norms * passes(2 * element_bytes_ * outer) +
        2 * passes((3 * element_bytes_ + mask) * outer);
    time.backward_input.elementwise +=
        shape_.norms * passes_back(4 * element_bytes_ * outer);
    if (mask > 0)
      time.backward_input.elementwise +=
          2 * passes_back((2 * element_bytes_ + mask) * outer);
    const double rotated =
        static_cast<double>(tokens()) * (query_width() + key_value_width());
    if (shape_.qk_norm)
      add_passes(
          2 * element_bytes_ * rotated, 3 * element_bytes_ * rotated, time);
    if (shape_.learned_positions == 0)
      add_passes(
          2 * element_bytes_ * rotated, 2 * element_bytes_ * rotated, time);
  }

  // Adds an activation of so many elements: its inputs are read, in backward
  // with dy, and as many gradients are written.
  void add_activation(double elements, PartTime& time) const {
    const double bytes = elements * element_bytes_;
    const auto inputs = static_cast<double>(shape_.up_matrices);
    add_passes((inputs + 1) * bytes, (2 * inputs + 1) * bytes, time);
  }

  void add_mlp(int64_t width, PartTime& time) const {
    const int64_t f = width / tp_;
    add_linear(shape_.hidden, shape_.up_matrices * f, time);
    add_linear(f, shape_.hidden, time);
    add_activation(static_cast<double>(tokens() * f), time);
  }

  // One product after another, as many as this rank has experts; the router's
  // logits and what becomes of them are fp32.
  void add_experts(PartTime& time) const {
    const ExpertsConfig& experts = *shape_.experts;
    const int64_t visits = tokens() * experts.num_experts_per_tok;
    const int64_t here =
        std::max<int64_t>(1, experts.num_experts / layout_.dims.ep);
    const int64_t width = experts.width / tp_;
    PartTime one;
    const int64_t rows = std::max<int64_t>(1, visits / here);
    add_linear(rows, shape_.hidden, shape_.up_matrices * width, one);
    add_linear(rows, width, shape_.hidden, one);
    time.add(static_cast<double>(here), one);
    add_activation(static_cast<double>(visits * width), time);
    add_linear(
        static_cast<int64_t>(outer_tokens()),
        shape_.hidden,
        experts.num_experts,
        time);
    // Logits, scores, choice; rows copied by expert and added up by token.
    constexpr double kScore = 4;
    const double scores =
        kScore * outer_tokens() * static_cast<double>(experts.num_experts);
    const double copied =
        element_bytes_ * static_cast<double>(visits) * outer_width();
    time.forward.elementwise += passes(4 * scores) + 2 * passes(2 * copied);
    time.backward_input.elementwise += passes_back(4 * scores) +
                                       passes_back(2 * copied) +
                                       passes_back(3 * copied);
  }

  // The sizes first, of a few bytes, then rows there and back; their gradients
  // the same way.
  void add_exchange(PartTime& time) const {
    const GroupPlace place = training_.place_expert_parallel(layout_.dims);
    const double bytes =
        element_bytes_ *
        static_cast<double>(tokens() * shape_.experts->num_experts_per_tok) *
        outer_width();
    const double once = all_to_all_seconds(training_.machine, place, bytes);
    time.forward.ep +=
        2 * once + all_to_all_seconds(training_.machine, place, kId);
    time.backward_input.ep += 2 * once;
  }

  void add_attention(int64_t window, PartTime& time) const {
    const AttentionTime attention =
        program_.attention(training_, layout_, window);
    time.forward.attention += attention.forward;
    time.backward_input.attention += attention.backward;
    const int cp = layout_.dims.cp;
    if (cp == 1)
      return;
    constexpr auto kExchange = Collective::kExchange;
    const machine::Machine& machine = training_.machine;
    const GroupPlace place = training_.place(layout_.dims, Axis::kCp);
    const double block =
        2 * element_bytes_ * static_cast<double>(tokens()) * key_value_width();
    const double step = sampled_seconds(machine, place, kExchange, block);
    const bool is_measured = is_sampled(machine, place, kExchange);
    const auto exposed = [&](double steps, double attention_s) {
      const double beside = attention_s * (cp - 1) / cp;
      return is_measured
                 ? steps * step
                 : exposed_beside(training_.constants, steps * step, beside);
    };
    time.forward.cp += exposed(cp - 1, attention.forward);
    time.backward_input.cp +=
        exposed(program_.backward_exchanges(cp), attention.backward);
  }

  double tensor_parallel(Collective collective, double bytes) const {
    return sampled_seconds(
        training_.machine,
        training_.place(layout_.dims, Axis::kTp),
        collective,
        bytes);
  }

  double activation_bytes() const {
    return element_bytes_ * static_cast<double>(tokens()) * outer_width();
  }

  // Into a region of tensor parallel in forward; the gradient of leaving one.
  double enter_region() const {
    return shards_tokens()
               ? tensor_parallel(Collective::kAllGather, activation_bytes())
               : 0;
  }

  // Out of one in forward; the gradient of entering one.
  double leave_region() const {
    return tensor_parallel(
        shards_tokens() ? Collective::kReduceScatter : Collective::kAllReduce,
        activation_bytes());
  }

  // Two regions; the shared expert is another one.
  void add_tensor_parallel(LayerMlp mlp, PartTime& time) const {
    if (tp_ == 1)
      return;
    const bool has_third =
        mlp == LayerMlp::kExperts && shape_.mlp_width(mlp) > 0;
    const double both = (has_third ? 3 : 2) * (enter_region() + leave_region());
    for (PassTime* pass : {&time.forward, &time.backward_input})
      pass->tp +=
          program_.exposed_regions(training_, layout_, both, pass->products);
  }

  void add_recompute(PartTime& time) const {
    const double part = program_.recomputed_layers;
    const PassTime& forward = time.forward;
    PassTime& backward = time.backward_input;
    if (layout_.recompute == Recompute::kSelective) {
      backward.recompute += part * forward.attention;
    } else if (layout_.recompute == Recompute::kFull) {
      backward.recompute += part * training_.machine.device.recompute_factor *
                            forward.computation();
      backward.tp += part * forward.tp;
      backward.cp += part * forward.cp;
      // Rows alone: the sizes are kept.
      backward.ep *= 1 + part;
    }
  }

  // Zero stages 2 and 3 communicate with every micro-batch: gradients are
  // scattered as they come, and with stage 3 weights are gathered before each
  // pass over a layer. `of_experts`: before ep divides them.
  void add_gradients(int64_t parameters, int64_t of_experts, PartTime& time)
      const {
    const int64_t experts_here = of_experts / layout_.dims.ep;
    time.backward_weight.elementwise +=
        program_.accumulation(training_, layout_, parameters + experts_here);
    if (layout_.zero_stage < 2)
      return;
    const auto seconds = [&](Collective collective, int bytes) {
      const auto among = [&](const GroupPlace& place, int64_t count) {
        return quickest_collective(
            training_.machine,
            place,
            collective,
            static_cast<double>(count) / tp_ * bytes);
      };
      const double all = among(training_.place_dp_cp(layout_.dims), parameters);
      return experts_here == 0
                 ? all
                 : all + among(
                             training_.place_expert_replicas(layout_.dims),
                             experts_here);
    };
    const double scatter =
        seconds(Collective::kReduceScatter, training_.precision.wire_bytes);
    const double gather =
        layout_.zero_stage < 3
            ? 0
            : seconds(Collective::kAllGather, training_.precision.weight_bytes);
    time.forward.dp +=
        exposed_beside(training_.constants, gather, time.forward.total());
    time.backward_input.dp += exposed_beside(
        training_.constants,
        gather + scatter,
        time.backward_input.total() + time.backward_weight.total());
  }

  const Training& training_;
  const Layout& layout_;
  const Program& program_;
  const ModelShape& shape_;
  machine::DeviceTime device_;
  int tp_;
  double element_bytes_;  // of an activation
};

}  // namespace

double exposed_beside(
    const machine::Constants& constants,
    double communication,
    double computation) {
  const double hidden = std::min(communication, computation);
  return communication - hidden + constants.contention * hidden;
}

PassTime& PassTime::operator+=(const PassTime& other) {
  for (const PassPart& part : kPassParts)
    this->*part.seconds += other.*part.seconds;
  return *this;
}

PassTime operator*(double factor, PassTime time) {
  for (const PassPart& part : kPassParts)
    time.*part.seconds *= factor;
  return time;
}

PassTime PartTime::total() const {
  PassTime sum = forward;
  sum += backward_input;
  return sum += backward_weight;
}

void PartTime::add(double factor, const PartTime& other) {
  for (const auto pass : kPasses)
    this->*pass += factor * (other.*pass);
}

PartTime layer_time(
    const Training& training,
    const Layout& layout,
    int64_t window,
    LayerMlp mlp) {
  return Part(training, layout).layer(window, mlp);
}

PartTime embedding_time(const Training& training, const Layout& layout) {
  return Part(training, layout).embedding();
}

PartTime head_time(const Training& training, const Layout& layout) {
  return Part(training, layout).head();
}

double mean_keys(int64_t sequence_tokens, int64_t sliding_window) {
  const auto t = static_cast<double>(sequence_tokens);
  if (sliding_window <= 0 || sliding_window >= sequence_tokens)
    return (t + 1) / 2;
  const auto w = static_cast<double>(sliding_window);
  return w - w * (w - 1) / (2 * t);
}

}  // namespace brigade::planner

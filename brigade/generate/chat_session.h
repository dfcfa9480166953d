// A conversation with a model: what the user says goes in, what the model
// answers comes out.
//
// Before each answer the whole conversation is rendered by the chat template
// and tokenized, as in training, so that an answer is what generate_text()
// continues that text with. Keys and values of the tokens that the model has
// seen in the same places stay; what follows the first token that differs is
// computed again, since templates change earlier turns when later ones come.
//
// An answer has room for max_tokens, or for a quarter of the model's positions
// where that is less. A conversation that leaves less loses its oldest turns,
// the system text excepted, until there is room or only the last message is
// left.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/chat/chat_template.h"
#include "brigade/comm/process_mesh.h"
#include "brigade/config/train_config.h"
#include "brigade/generate/generate_options.h"
#include "brigade/generate/stored_model.h"
#include "brigade/generate/token_generator.h"
#include "brigade/tokenizer/tokenizer.h"

namespace brigade {

struct ChatSessionOptions {
  // Prompts and batch mean nothing here. Answer n, counted from 0, is drawn as
  // the text of prompt n is.
  GenerateOptions text;
  std::string system;                   // what stands in front; "": nothing
  std::filesystem::path template_file;  // "": the tokenizer's
  std::string template_name;            // of its several; "": the usual
  // More names for the template, and the time it may tell.
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  int64_t now = 0;
};

struct ChatAnswer {
  enum class End {
    kEndToken,   // the model's own
    kMaxTokens,  // after max_tokens
    kPositions,  // the model has no further ones
    kStopped,    // by the caller
  };
  End end = End::kMaxTokens;
  std::string text;
  int64_t prompt_tokens = 0;  // of the rendered conversation
  int64_t kept_tokens = 0;    // those of them not computed again
  int64_t generated_tokens = 0;
  int64_t dropped_turns = 0;  // the oldest, for want of room
};

class ChatSession {
 public:
  // Collective over the mesh's world, as all members, with the same arguments
  // on every rank; `stored` is verified already, `config` inference_config()'s.
  // The mesh must outlive it. Throws ConfigError for values out of range,
  // DataError where the template is missing or refuses a conversation.
  ChatSession(
      const StoredModel& stored,
      const ChatSessionOptions& options,
      const TrainConfig& config,
      const ProcessMesh& mesh);

  // Called with each piece of an answer as soon as it is complete UTF-8.
  using WritePiece = std::function<void(std::string_view piece)>;
  // Whether to end the answer here; asked before each token, and the same on
  // every rank.
  using IsStopped = std::function<bool()>;

  // Message and answer, also one that was stopped, become part of the
  // conversation. Throws DataError, and leaves the conversation as it was, for
  // a message that the template refuses or that is too long for the model;
  // NumericError for logits that are not finite.
  ChatAnswer answer(
      const std::string& message,
      const WritePiece& write,
      const IsStopped& is_stopped = [] { return false; });

  // Forgets all but the system text.
  void reset();

  // The positions that the model was made for.
  int64_t positions() const { return positions_; }

 private:
  std::vector<int64_t> encode(const nlohmann::ordered_json& messages) const;
  // The tokens of a conversation that has room for an answer; throws where
  // there is none.
  std::vector<int64_t> make_room(
      nlohmann::ordered_json& messages,
      ChatAnswer& answer) const;
  void generate(
      const std::vector<int64_t>& prompt,
      const WritePiece& write,
      const IsStopped& is_stopped,
      ChatAnswer& answer);

  ChatSessionOptions options_;
  int64_t positions_;
  std::unique_ptr<Tokenizer> tokenizer_;
  ChatTemplate template_;
  ChatOptions rendering_;
  std::set<int64_t> ends_;
  TokenGenerator generator_;
  nlohmann::ordered_json messages_ = nlohmann::ordered_json::array();
  std::vector<int64_t> seen_;  // tokens whose keys and values are kept
  uint64_t answers_ = 0;
};

}  // namespace brigade

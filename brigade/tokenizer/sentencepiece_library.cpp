// Loads libsentencepiece when it is first used, in a scope of its own.
//
// Debian's libsentencepiece carries protobuf 3.14 inside and exports all of it;
// libtorch brings protobuf 3.21 along. In one scope whichever comes first
// serves both, and the program dies before main() or at the first model. With
// RTLD_LOCAL no one else uses the library's protobuf, and with RTLD_DEEPBIND
// the library uses no other.
//
// The few functions that sentencepiece's headers leave to the linker are
// defined here and pass on to the loaded library; all others are virtual.
#include <dlfcn.h>
#include <fmt/format.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include "brigade/base/error.h"

namespace {

void* open_library(const char* name) {
  int mode = RTLD_NOW | RTLD_LOCAL;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && \
    !defined(BRIGADE_SANITIZED)
  mode |= RTLD_DEEPBIND;  // sanitizers refuse it
#endif
  void* library = ::dlopen(name, mode);
  if (library == nullptr) {
    throw brigade::Error(
        brigade::ExitCode::kUnexpected,
        fmt::format(
            "[tokenizer] cannot load {} ({}); install the package "
            "libsentencepiece0",
            name,
            ::dlerror()));
  }
  return library;
}

// The trainer's library depends on this one.
void* processor_library() {
  static void* const library = open_library("libsentencepiece.so.0");
  return library;
}

void* trainer_library() {
  processor_library();
  static void* const library = open_library("libsentencepiece_train.so.0");
  return library;
}

template <class Function>
Function symbol(void* library, const char* name) {
  void* const address = ::dlsym(library, name);
  if (address == nullptr) {
    throw brigade::Error(
        brigade::ExitCode::kUnexpected,
        fmt::format(
            "[tokenizer] this libsentencepiece has no {}; Brigade is built for "
            "0.1.97",
            name));
  }
  return reinterpret_cast<Function>(address);
}

#define STATUS_CONSTRUCTOR "_ZN13sentencepiece4util6StatusC1Ev"
#define STATUS_DESTRUCTOR "_ZN13sentencepiece4util6StatusD1Ev"
#define PROCESSOR_CONSTRUCTOR "_ZN13sentencepiece22SentencePieceProcessorC1Ev"

}  // namespace

// Constructors and destructors of classes whose members the headers hide: as
// functions with the names that the compiler gives those.
extern "C" {
void brigade_status_constructor(void* self) __asm__(STATUS_CONSTRUCTOR);
void brigade_status_destructor(void* self) __asm__(STATUS_DESTRUCTOR);
void brigade_processor_constructor(void* self) __asm__(PROCESSOR_CONSTRUCTOR);

void brigade_status_constructor(void* self) {
  static const auto function =
      symbol<void (*)(void*)>(processor_library(), STATUS_CONSTRUCTOR);
  function(self);
}

void brigade_status_destructor(void* self) {
  static const auto function =
      symbol<void (*)(void*)>(processor_library(), STATUS_DESTRUCTOR);
  function(self);
}

void brigade_processor_constructor(void* self) {
  static const auto function =
      symbol<void (*)(void*)>(processor_library(), PROCESSOR_CONSTRUCTOR);
  function(self);
}
}

namespace sentencepiece {

std::string util::Status::ToString() const {
  static const auto function = symbol<std::string (*)(const Status*)>(
      processor_library(), "_ZNK13sentencepiece4util6Status8ToStringB5cxx11Ev");
  return function(this);
}

util::Status SentencePieceTrainer::Train(
    const std::unordered_map<std::string, std::string>& kwargs,
    SentenceIterator* sentence_iterator,
    std::string* serialized_model_proto) {
  static const auto function =
      symbol<decltype(static_cast<util::Status (*)(
                          const std::unordered_map<std::string, std::string>&,
                          SentenceIterator*,
                          std::string*)>(&SentencePieceTrainer::Train))>(
          trainer_library(),
          "_ZN13sentencepiece20SentencePieceTrainer5TrainERKSt13unordered_"
          "mapINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEES7_St4hashI"
          "S7_ESt8equal_toIS7_ESaISt4pairIKS7_S7_EEEPNS_16SentenceIteratorEPS7"
          "_");
  return function(kwargs, sentence_iterator, serialized_model_proto);
}

}  // namespace sentencepiece

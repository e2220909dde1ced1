// How an op refuses what its caller hands it: a runtime error with the words given.
//
// Not torch's own check macro: it builds its message with a C++ stream, and in torch's CUDA builds, which export pieces
// of an older C++ runtime, that crashes instead of throwing (seen under torch 2.11).
#pragma once

#include <stdexcept>
#include <string>

namespace moesaic {

inline std::string words(const char* text) { return text; }
inline std::string words(const std::string& text) { return text; }
inline std::string words(long number) { return std::to_string(number); }
inline std::string words(long long number) { return std::to_string(number); }
inline std::string words(int number) { return std::to_string(number); }

template <typename... Parts>
void require(bool holds, const Parts&... parts) {
  if (!holds) {
    std::string what;
    ((what += words(parts)), ...);
    throw std::runtime_error(what);
  }
}

}  // namespace moesaic

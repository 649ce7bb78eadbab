package denycache

// Len returns the number of keys in the cache. Some of their denials may have ended.
func (s *Store) Len() int { return s.denials.Len() }

-- The last part of renew.lua: admits waiters.
--
-- The lease is renewed, so nothing after this may make the reply an error. An entry that is removed before an error is restored by
-- its next check.
pcall(advance, q)
return {1, is_contended(q)}
